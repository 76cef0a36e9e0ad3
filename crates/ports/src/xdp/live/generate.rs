//! The port that makes frames of templates: its receive queue makes and sends them, its transmit queue only counts.

use super::account::Account;
use super::template::{CALL, Templates};
use super::{BATCH, Live};
use crate::generator;
use crate::xdp::{Config, ask};
use std::sync::Arc;
use std::time::Instant;
use towpath_packet::port::{Info, Layer, Port, PortError, Queues, RxQueue, Start, State, TxLinear, TxQueue, Wake};
use towpath_packet::{Batch, Cache, Counters, Direction, DropReason, Offloads};
use towpath_sys::netdev::Control;
use towpath_sys::netdev_genl::Device;
use towpath_sys::netns;

/// An interface, and the frames that it will be sent.
#[derive(Debug)]
pub struct TemplatePort {
    info: Info,
    live: Live,
    account: Account,
    len: u64,
    count: Option<u64>,
}

/// Makes the interface of `config` a generator of the frames that `frames` describes.
///
/// # Errors
/// [`PortError::Option`] for frames that can't be made of templates, or a device that takes none; otherwise as
/// [`open`](crate::xdp::open).
pub fn open_templates(config: &Config, frames: &generator::Config) -> Result<TemplatePort, PortError> {
    config.check()?;
    let templates = Templates::new(frames)?;
    let failed = |step: &'static str| ask::os(config, step);
    let examined = netns::within(config.netns.as_deref(), || {
        let control = Control::new().map_err(failed("socket"))?;
        let index = control.index(&config.interface).map_err(failed("find the interface"))?;
        let mtu = control.mtu(&config.interface).map_err(failed("SIOCGIFMTU"))?;
        let driver = control.driver(&config.interface).unwrap_or_default();
        let device = Device::new(index).map_err(failed("socket(AF_NETLINK)"))?;
        super::possible(device.features().ok())
            .map_err(|why| config.error("tx", "template", format!("{why} ({})", super::mend(&driver))))?;
        Ok((Arc::new(control), index, mtu, device))
    });
    let (control, index, mtu, device) = examined.map_err(ask::namespace(config))??;
    let len = templates.frames.first().map_or(0, Vec::len);
    if len > mtu as usize + 22 {
        return Err(config.error(
            "size",
            len,
            format!("must be at most {}, the interface's MTU and a link header", mtu + 14),
        ));
    }
    let info = Info {
        name: config.port(),
        layer: Layer::Ethernet,
        mtu,
        tx_linear: TxLinear::None,
        headroom: 0,
        tailroom: 0,
        max_chunks: u16::MAX,
        tx_offloads: Offloads::ALL,
        rx_offloads: Offloads::NONE,
        max_queues: 1,
        finite: frames.count.is_some(),
        abilities: Vec::new(),
    };
    let live = Live::of_templates(config, index, &templates)?;
    let account = Account::new(device, control, index);
    Ok(TemplatePort { info, live, account, len: len as u64, count: frames.count })
}

impl Port for TemplatePort {
    type Rx = TemplateRx;
    type Tx = TemplateTx;

    fn info(&self) -> &Info {
        &self.info
    }

    fn start(self, start: Start) -> Result<Queues<TemplateRx, TemplateTx>, PortError> {
        let failed = |source| PortError::Pool { port: self.info.name.clone(), source };
        let cache = start.pool.cache(Direction::Tx).map_err(failed)?;
        let sent = Arc::<Counters>::default();
        let tx = TemplateTx { cache, counters: sent.clone() };
        let TemplatePort { live, account, len, count, .. } = self;
        let rx = TemplateRx { live, account, len, left: count, state: State::Up, sent, counters: Arc::default() };
        Ok(Queues { rx: vec![rx], tx: vec![tx] })
    }
}

/// Makes frames and sends them; hands none over.
#[derive(Debug)]
pub struct TemplateRx {
    live: Live,
    account: Account,
    len: u64,
    left: Option<u64>,
    state: State,
    sent: Arc<Counters>,
    counters: Arc<Counters>,
}

impl TemplateRx {
    fn settle(&mut self) {
        self.state = self.account.settle(&self.sent);
        if self.left == Some(0) && !self.state.ended() {
            self.state = State::Done;
        }
    }
}

impl RxQueue for TemplateRx {
    fn rx(&mut self, _out: &mut Batch) -> usize {
        let want = self.left.unwrap_or(u64::MAX).min(CALL.into()) as u32;
        if self.state == State::Up && want > 0 {
            let result = self.live.run(want, BATCH);
            let made = self.live.made();
            self.sent.called(1);
            if let Err(error) = result
                && error.raw_os_error() != Some(libc::EINTR)
            {
                self.sent.failed(1);
                self.state = State::Gone(format!("the kernel does not run the program: {error}").into());
            }
            self.counters.moved(made, made * self.len);
            self.account.handed(made, made * self.len);
            if let Some(left) = &mut self.left {
                *left = left.saturating_sub(made);
            }
        }
        if self.account.is_due() || self.left == Some(0) && self.state == State::Up {
            self.settle();
        }
        0
    }

    fn state(&self) -> State {
        self.state.clone()
    }

    /// There is always more to make.
    fn wake(&self) -> Wake {
        match self.state {
            State::Up => Wake::At(Instant::now()),
            State::Down(_) => Wake::Poll,
            State::Done | State::Gone(_) => Wake::Never,
        }
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

impl Drop for TemplateRx {
    /// The device has the last word.
    fn drop(&mut self) {
        self.account.settle(&self.sent);
    }
}

/// Counts what [`TemplateRx`] sent; what is sent through it is refused.
#[derive(Debug)]
pub struct TemplateTx {
    cache: Cache,
    counters: Arc<Counters>,
}

impl TxQueue for TemplateTx {
    fn tx(&mut self, batch: &mut Batch) -> usize {
        let n = batch.len();
        self.counters.dropped(DropReason::Refused, n as u64);
        self.cache.free_bulk(batch);
        n
    }

    fn offloads(&self) -> Offloads {
        Offloads::NONE
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}
