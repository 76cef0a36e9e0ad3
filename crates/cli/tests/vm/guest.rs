//! The booted machine: one serial line carries commands, the kernel's messages go by another into a
//! file.
//!
//! One machine serves all tests of [`inside`], one after the other. A test that fails ends the
//! machine, and the next test boots a new one. [`alone`] boots machines of other kinds, while no
//! other one is in use. QEMU's monitor pulls cables and devices, and writes each access to a
//! register of the NIC to a file.

use crate::image;
use crate::kernel::{Kernel, Release};
use crate::qmp::Qmp;
use crate::support::{Need, needs, skip};
use crate::trace::{Access, Trace};
use serde_json::json;
use std::cell::Cell;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Longest silence while booting or while a command runs.
const LONGEST: Duration = Duration::from_secs(180);

/// PCI addresses of the devices.
pub(crate) const NIC: &str = "0000:00:04.0";
/// The kernel's own NIC, on the same hub.
pub(crate) const PEER: &str = "0000:00:06.0";
/// Another NIC of the kernel, connected to nothing.
pub(crate) const SPARE: &str = "0000:00:07.0";
/// A NIC that neither the guest's kernel nor towpath drives.
pub(crate) const OTHER: &str = "0000:00:0a.0";

/// A NIC that is plugged in while the machine runs: behind the slot of a PCI Express port.
pub(crate) const HOT: &str = "0000:01:00.0";

pub(crate) struct Guest {
    qemu: Child,
    qmp: Qmp,
    trace: Trace,
    input: ChildStdin,
    lines: Receiver<String>,
    console: PathBuf,
    commands: u32,
    /// Its shell reads.
    ready: Cell<bool>,
}

/// Output (stdout and stderr) and exit code of a command inside.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: i32,
    pub(crate) text: String,
}

static GUEST: Mutex<Option<Guest>> = Mutex::new(None);

/// Whether machines can be booted; if not, the test is skipped.
fn can_boot(name: &str) -> bool {
    let packages = ["qemu-system-x86_64", "busybox", "dpkg-deb", "apt-get"];
    packages.iter().all(|program| needs(name, &[Need::Program(program)]))
}

/// Room for machines of a test's own: no other test uses one for as long as it lives.
pub(crate) struct Alone {
    _shared: MutexGuard<'static, Option<Guest>>,
    kernel: PathBuf,
    initrd: PathBuf,
}

/// Runs a test when no other one uses a machine, or skips it if none can be booted.
pub(crate) fn alone(name: &str, test: impl Fn(Alone)) {
    alone_with(name, Release::Installed, test);
}

/// The same for machines with a kernel of `release`.
pub(crate) fn alone_with(name: &str, release: Release, test: impl Fn(Alone)) {
    if !can_boot(name) {
        return;
    }
    unless_it_dies(name, || {
        let mut shared = GUEST.lock().unwrap_or_else(PoisonError::into_inner);
        // It would take memory, and time now and then.
        *shared = None;
        match files(release) {
            Ok((kernel, initrd)) => test(Alone { _shared: shared, kernel, initrd }),
            Err(why) => skip(name, why),
        }
    });
}

thread_local! {
    /// A machine whose kernel had died was left by a test of this thread that failed.
    static DIED: Cell<bool> = const { Cell::new(false) };
}

/// Runs a test, and once more if it failed in a machine whose kernel died. QEMU 7.2 emulates two
/// processors at a time, and now and then a kernel dies of that: in code that it patches while the
/// other processor executes it, or of a page whose last change was not copied to the next machine.
/// A frequent defect of ours lets it die again. Machines take most of the time of all tests: each
/// test says how long it took.
fn unless_it_dies(name: &str, test: impl Fn()) {
    // Not by a macro, whose output the test's harness keeps to itself.
    let say = |what: &str| drop(writeln!(std::io::stderr(), "{name}: {what}"));
    let began = Instant::now();
    DIED.set(false);
    if let Err(panic) = std::panic::catch_unwind(AssertUnwindSafe(&test)) {
        if !DIED.get() {
            std::panic::resume_unwind(panic);
        }
        say("the guest's kernel died; once more");
        test();
    }
    say(&format!("{:.1} s", began.elapsed().as_secs_f32()));
}

impl Alone {
    /// Boots a machine with `devices`, whose shell answers. Its console is kept by its name.
    #[track_caller]
    pub(crate) fn boot(&self, name: &str, memory: u32, devices: impl Fn(&mut Command)) -> Guest {
        Guest::booted(|| Ok(self.start(name, memory, &devices))).unwrap_or_else(|why| panic!("{why}"))
    }

    /// Starts a machine that may wait for the state of another one.
    #[track_caller]
    pub(crate) fn start(&self, name: &str, memory: u32, devices: impl FnOnce(&mut Command)) -> Guest {
        let mut qemu = Command::new("qemu-system-x86_64");
        qemu.args(["-accel", "tcg,thread=multi", "-cpu", CPU, "-smp", "2", "-m", &memory.to_string()]);
        devices(&mut qemu);
        Guest::start(qemu, name, &self.kernel, &self.initrd).unwrap_or_else(|why| panic!("{why}"))
    }
}

/// The kernel and the archive that machines boot.
type Files = Result<(PathBuf, PathBuf), String>;

/// The files of a release, built once.
fn files(release: Release) -> Files {
    static INSTALLED: OnceLock<Files> = OnceLock::new();
    static NEWER: OnceLock<Files> = OnceLock::new();
    let build = || {
        let kernel = Kernel::fetch(&image::cache(), release)?;
        let initrd = image::build(&kernel)?;
        Ok((kernel.image().ok_or("no kernel")?, initrd))
    };
    let files = match release {
        Release::Installed => &INSTALLED,
        Release::Newer => &NEWER,
    };
    files.get_or_init(build).clone()
}

/// Runs a test in the machine, or skips it.
pub(crate) fn inside(name: &str, test: impl Fn(&mut Guest)) {
    if !can_boot(name) {
        return;
    }
    unless_it_dies(name, || {
        let mut shared = GUEST.lock().unwrap_or_else(PoisonError::into_inner);
        let mut guest = match shared.take() {
            Some(guest) => guest,
            None => match Guest::boot() {
                Ok(guest) => guest,
                Err(why) => return skip(name, why),
            },
        };
        test(&mut guest);
        *shared = Some(guest);
    });
}

impl Guest {
    fn boot() -> Result<Guest, String> {
        let (kernel, initrd) = files(Release::Installed)?;
        let began = Instant::now();
        let guest = Guest::booted(|| {
            let mut qemu = Command::new("qemu-system-x86_64");
            arguments(&mut qemu);
            Guest::start(qemu, "vfio", &kernel, &initrd)
        })?;
        eprintln!("booted in {:.1} s", began.elapsed().as_secs_f32());
        Ok(guest)
    }

    /// Starts a machine, its monitor and the reader of its output.
    fn start(mut qemu: Command, name: &str, kernel: &Path, initrd: &Path) -> Result<Guest, String> {
        let console = image::cache().join(format!("{name}-console.log"));
        let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
        let (monitor, trace) = (folder.path().join("qmp"), image::cache().join(format!("{name}-trace.log")));
        let _ = std::fs::remove_file(&trace);
        qemu.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
        qemu.arg("-kernel").arg(kernel).arg("-initrd").arg(initrd);
        qemu.args(["-append", BOOT, "-serial", &format!("file:{}", console.display()), "-serial", "stdio"]);
        qemu.arg("-qmp").arg(format!("unix:{},server=on,wait=off", monitor.display())).arg("-D").arg(&trace);
        let mut qemu = spawn(qemu)?;
        let input = qemu.stdin.take().ok_or("no input")?;
        let output = qemu.stdout.take().ok_or("no output")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let mut output = BufReader::new(output);
            let mut line = Vec::new();
            while output.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
                let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                line.clear();
                if sender.send(text).is_err() {
                    break;
                }
            }
        });
        let qmp = Qmp::connect(&monitor).unwrap_or_else(|why| panic!("QEMU did not start: {why}"));
        Ok(Guest { qemu, qmp, trace: Trace::new(trace), input, lines, console, commands: 0, ready: Cell::new(false) })
    }

    /// A machine whose shell reads. Now and then a kernel dies while it boots, in code that it
    /// patches at that moment, because QEMU emulates two processors: then another is started.
    #[track_caller]
    pub(crate) fn booted(start: impl Fn() -> Result<Guest, String>) -> Result<Guest, String> {
        for _ in 0..2 {
            let guest = start()?;
            if guest.boots() {
                return Ok(guest);
            }
            eprintln!("the guest's kernel died while it booted; once more\n{}", guest.last_words());
        }
        let guest = start()?;
        guest.is_booted();
        Ok(guest)
    }

    /// Waits until its shell reads: input is lost before.
    #[track_caller]
    pub(crate) fn is_booted(&self) {
        if !self.boots() {
            self.fail("its kernel died while it booted");
        }
    }

    /// The same; returns false if its kernel dies.
    #[track_caller]
    fn boots(&self) -> bool {
        let by = Instant::now() + LONGEST;
        while !self.ready.get() {
            match self.lines.recv_timeout(Duration::from_secs(1)) {
                Ok(line) => self.ready.set(line == "@ready"),
                Err(_) if self.has_died() => return false,
                Err(RecvTimeoutError::Timeout) if Instant::now() < by => {}
                Err(_) => self.fail("booting: no end in sight"),
            }
        }
        true
    }

    /// Runs a command of the guest's shell to its end.
    #[track_caller]
    pub(crate) fn try_run(&mut self, command: &str) -> Done {
        self.commands += 1;
        let (begin, end) = (format!("@begin-{}", self.commands), format!("@end-{} ", self.commands));
        let n = self.commands;
        let sent =
            writeln!(self.input, "echo @begin-{n}; {{ {command}\n}} </dev/null 2>&1; c=$?; echo; echo @end-{n} $c");
        sent.and_then(|()| self.input.flush()).unwrap_or_else(|e| self.fail(&format!("{command}: {e}")));
        self.hear(command, |line| (line == begin).then_some(()));
        let mut text = String::new();
        let code = self.hear(command, |line| {
            let code = line.strip_prefix(&end).map(|code| code.parse().unwrap_or(-1));
            if code.is_none() {
                text += line;
                text.push('\n');
            }
            code
        });
        Done { code, text: text.trim_end().to_owned() }
    }

    /// Reads lines until `heard` returns a value.
    #[track_caller]
    fn hear<T>(&self, what: &str, mut heard: impl FnMut(&str) -> Option<T>) -> T {
        let mut all = String::new();
        loop {
            let Ok(line) = self.lines.recv_timeout(LONGEST) else {
                self.fail(&format!("{what}: no end in sight; until now it wrote:\n{all}"));
            };
            if let Some(answer) = heard(&line) {
                return answer;
            }
            all += &format!("{line}\n");
        }
    }

    /// Runs a command that must succeed; returns its output.
    #[track_caller]
    pub(crate) fn run(&mut self, command: &str) -> String {
        let done = self.try_run(command);
        if done.code != 0 {
            self.fail(&format!("{command}: code {}: {}", done.code, done.text));
        }
        done.text
    }

    /// Waits until a command succeeds.
    #[track_caller]
    pub(crate) fn until(&mut self, what: &str, command: &str) {
        let by = Instant::now() + LONGEST / 2;
        while self.try_run(command).code != 0 {
            if Instant::now() > by {
                self.fail(&format!("waited in vain: {what}: {command}"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Has QEMU's monitor execute a command.
    #[track_caller]
    pub(crate) fn monitor(&mut self, command: &str, arguments: &serde_json::Value) {
        self.qmp.execute(command, arguments).unwrap_or_else(|why| self.fail(&format!("{command} {arguments}: {why}")));
    }

    /// Plugs the cable of a device or pulls it.
    #[track_caller]
    pub(crate) fn set_link(&mut self, device: &str, up: bool) {
        self.monitor("set_link", &json!({"name": device, "up": up}));
    }

    /// Plugs [`HOT`] in, connected to the hub, and waits until the kernel has found it.
    #[track_caller]
    pub(crate) fn plug(&mut self) {
        let nic = json!({"driver": "e1000e", "id": "hot", "netdev": "h3", "bus": "port0", "romfile": "",
                         "mac": "02:00:00:00:00:09"});
        self.monitor("device_add", &nic);
        self.until("the kernel has found the NIC", &format!("[ -e /sys/bus/pci/devices/{HOT}/iommu_group ]"));
    }

    /// Asks the guest to give the NIC up, as the button of a slot does, and waits until it has.
    #[track_caller]
    pub(crate) fn unplug(&mut self) {
        self.qmp.forget_events();
        self.monitor("device_del", &json!({"id": "hot"}));
        let gone = |event: &serde_json::Value| event["event"] == "DEVICE_DELETED" && event["data"]["device"] == "hot";
        if let Err(why) = self.qmp.wait(LONGEST / 2, gone) {
            self.fail(&format!("the NIC is not given up: {why}"));
        }
    }

    /// Begins to move the running machine to the one that waits at a socket: its memory is copied
    /// with `bandwidth` bytes a second, until the rest takes no longer than `downtime`.
    #[track_caller]
    pub(crate) fn begin_to_migrate(&mut self, to: &Path, bandwidth: u64, downtime: Duration) {
        self.qmp.forget_events();
        let events = json!({"capabilities": [{"capability": "events", "state": true}]});
        self.monitor("migrate-set-capabilities", &events);
        let limits = json!({"max-bandwidth": bandwidth, "downtime-limit": downtime.as_millis() as u64});
        self.monitor("migrate-set-parameters", &limits);
        self.monitor("migrate", &json!({"uri": format!("unix:{}", to.display())}));
    }

    /// Waits until the machine has moved.
    #[track_caller]
    pub(crate) fn is_migrated(&mut self) {
        let done = |event: &serde_json::Value| {
            event["event"] == "MIGRATION" && matches!(event["data"]["status"].as_str(), Some("completed" | "failed"))
        };
        if let Err(why) = self.qmp.wait(LONGEST, done) {
            self.fail(&format!("the migration does not end: {why}"));
        }
    }

    /// This machine is the one that `before` has become. It has the shell's line, whose commands
    /// are numbered on.
    pub(crate) fn continues(mut self, before: &Guest) -> Guest {
        self.commands = before.commands;
        self
    }

    /// Whether accesses to the registers of the NIC are recorded from now on.
    #[track_caller]
    pub(crate) fn set_trace(&mut self, on: bool) {
        self.monitor("trace-event-set-state", &json!({"name": "e1000e_core_write", "enable": on}));
    }

    /// The writes to the registers of the NIC since the last call.
    pub(crate) fn writes(&mut self) -> Vec<Access> {
        self.trace.next()
    }

    #[track_caller]
    fn fail(&self, why: &str) -> ! {
        panic!("{why}\nthe guest's kernel wrote last:\n{}", self.last_words());
    }

    /// Whether its kernel found that it is broken.
    fn has_died(&self) -> bool {
        let console = self.console();
        ["---[ end trace", "Kernel panic"].iter().any(|words| console.contains(words))
    }

    /// What its kernel wrote.
    fn console(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.console).unwrap_or_default()).into_owned()
    }

    fn last_words(&self) -> String {
        let console = self.console();
        let last: Vec<_> = console.lines().rev().take(30).collect();
        last.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if std::thread::panicking() && self.has_died() {
            DIED.set(true);
        }
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// The processor. With RDRAND the kernel has its random numbers before the second processor runs.
/// Else it patches the code that reads them while the other one executes it, and QEMU 7.2 may
/// execute the breakpoint of that patch too late.
const CPU: &str = "Nehalem,+rdrand";

/// The kernel's command line. On a loaded machine the kernel would find that timers do not work.
const BOOT: &str = "console=ttyS0 panic=-1 rdinit=/init intel_iommu=on iommu.strict=1 mitigations=off tsc=reliable \
                    clocksource=tsc random.trust_cpu=on no_timer_check";

/// The machine and its devices.
fn arguments(qemu: &mut Command) {
    qemu.args(["-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", CPU, "-smp", "2", "-m", "512"])
        .args(["-device", "intel-iommu,intremap=on,aw-bits=48"]);
    for (port, hub) in [0, 0, 1, 0].into_iter().enumerate() {
        qemu.arg("-netdev").arg(format!("hubport,id=h{port},hubid={hub}"));
    }
    qemu.args(["-device", "e1000e,id=nic,netdev=h0,addr=4.0,romfile=,mac=02:00:00:00:00:04"])
        .args(["-device", &virtio("h1", 6), "-device", &virtio("h2", 7)])
        .args(["-device", "pcie-root-port,id=port0,chassis=1,slot=1,addr=8.0"])
        .args(["-device", "e1000,addr=a.0,romfile="]);
}

/// Starts the machine on a thread that ends only with the process: the machine is killed when that
/// thread ends.
fn spawn(mut qemu: Command) -> Result<Child, String> {
    qemu.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    // SAFETY: prctl is safe to call between fork and exec, and takes no pointer here.
    unsafe {
        qemu.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    let (sender, child) = channel();
    std::thread::spawn(move || {
        let _ = sender.send(qemu.spawn().map_err(|e| format!("qemu-system-x86_64: {e}")));
        loop {
            std::thread::park();
        }
    });
    child.recv().map_err(|e| e.to_string())?
}

fn virtio(netdev: &str, slot: u32) -> String {
    format!(
        "virtio-net-pci,netdev={netdev},addr={slot}.0,disable-legacy=on,iommu_platform=on,romfile=,mac=02:00:00:00:00:0{slot}"
    )
}
