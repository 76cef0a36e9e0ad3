//! The port: its device's registers as they are found, its own report, and how it runs for a while.

use super::Section;
use std::time::{Duration, Instant};
use towpath::packet::port::{Port, PortControl, PortError, Queues, RxQueue, Start, State, TxQueue};
use towpath::packet::{Batch, Offloads, Pool, PoolConfig, Snapshot};
use towpath::{AnyPort, Opener, Role, Uri};

/// The pause between two polls of a port that receives nothing.
const PAUSE: Duration = Duration::from_millis(1);

/// `run`: how long the port runs; not at all if it is zero.
pub(super) fn sections(text: &str, run: Duration) -> Vec<Section> {
    let uri: Uri = match text.parse() {
        Ok(uri) => uri,
        Err(error) => return vec![Section::new("port").with("error", error)],
    };
    let mut sections = Vec::new();
    if uri.scheme() == "e1000e" {
        let mut section = Section::new("registers as found");
        match towpath::e1000e::registers(&uri) {
            Ok(registers) => add_registers(&mut section, registers),
            Err(error) => section.add("error", error),
        }
        sections.push(section);
    }
    match Opener::new().open(&uri, Role::Both) {
        Err(error) => sections.push(Section::new("port").with("error", error)),
        Ok(port) => sections.extend(opened(port, run)),
    }
    sections
}

fn add_registers(section: &mut Section, registers: Vec<(&'static str, u64)>) {
    registers.into_iter().for_each(|(name, value)| section.add(name, format!("{value:#010x}")));
}

fn opened(port: AnyPort, run: Duration) -> Vec<Section> {
    let mut section = Section::new("port");
    let info = port.info();
    section.add("name", &info.name);
    section.add("mtu", info.mtu);
    section.add("queues", info.max_queues);
    section.add("sends", info.tx_offloads);
    section.add("receives", info.rx_offloads);
    for ability in &info.abilities {
        section.add(ability.name, format!("{}: {}", if ability.on { "on" } else { "off" }, ability.why));
    }
    let control = port.control();
    for setting in control.iter().flat_map(|control| control.settings()) {
        section.add(format!("setting {}", setting.name), setting.value);
    }
    // Only a device has more to report when it runs. Other ports would change the machine, or wait
    // for peers.
    let Some(control) = control.filter(|_| !run.is_zero() && drives_a_device(&port)) else { return vec![section] };
    let mut running = Section::new("running");
    let mut registers = Section::new("registers while running");
    if let Err(error) = run_port(port, &*control, run, &mut running, &mut registers) {
        running.add("error", error);
    }
    vec![section, running, registers]
}

fn drives_a_device(port: &AnyPort) -> bool {
    use AnyPort::{Cpsw, CpswPlatform, E1000eModel, E1000eQtest, E1000eVfio};
    matches!(port, E1000eVfio(_) | E1000eQtest(_) | E1000eModel(_) | Cpsw(_) | CpswPlatform(_))
}

/// Receives with one queue, and sends nothing.
fn run_port(
    port: AnyPort,
    control: &dyn PortControl,
    run: Duration,
    section: &mut Section,
    registers: &mut Section,
) -> Result<(), PortError> {
    let name = port.info().name.clone();
    let pool =
        Pool::new(PoolConfig::default().capacity(4096)).map_err(|source| PortError::Pool { port: name, source })?;
    let Queues { mut rx, mut tx } = port.start(Start { pool, queues: 1, accept: Offloads::ALL })?;
    let (begun, mut up, mut batch) = (Instant::now(), None, Batch::<64>::new());
    while begun.elapsed() < run && !rx.iter().any(|rx| matches!(rx.state(), State::Gone(_))) {
        let mut received = 0;
        for rx in &mut rx {
            rx.refill();
            received += rx.rx(&mut batch);
            batch.drain_front(64).for_each(drop);
        }
        tx.iter_mut().for_each(|tx| _ = tx.reclaim());
        if up.is_none() && rx.iter().all(|rx| rx.state() == State::Up) {
            up = Some(begun.elapsed());
        }
        if received == 0 {
            std::thread::sleep(PAUSE);
        }
    }
    section.add("seconds", format!("{:.1}", begun.elapsed().as_secs_f64()));
    section.add("link up after", up.map_or("never".to_owned(), |time| format!("{:.1} s", time.as_secs_f64())));
    for (n, (rx, tx)) in rx.iter().zip(&tx).enumerate() {
        let state = match rx.state() {
            State::Up => "up".to_owned(),
            State::Down(why) => format!("down: {why}"),
            State::Gone(why) => format!("gone: {why}"),
            State::Done => "done".to_owned(),
        };
        section.add(format!("queue {n}"), state);
        section.add(format!("queue {n} received"), counters(&rx.counters().snapshot()));
        section.add(format!("queue {n} sent"), counters(&tx.counters().snapshot()));
    }
    control.events().into_iter().for_each(|(name, count)| section.add(name, count));
    add_registers(registers, control.registers());
    Ok(())
}

fn counters(now: &Snapshot) -> String {
    let Snapshot { packets, bytes, errors, .. } = now;
    let (drops, missed) = (now.all_drops(), now.all_missed());
    format!("{packets} packets, {bytes} bytes, {errors} errors, {drops} dropped, {missed} missed")
}
