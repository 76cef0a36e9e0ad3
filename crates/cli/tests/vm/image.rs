//! The boot image: busybox, kernel modules, programs of this repository, programs of this machine,
//! and the shared libraries of both.

use crate::cpio::Cpio;
use crate::kernel::{Kernel, Release};
use crate::support::{run, succeed};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Kernel modules of every guest: its own NICs, taps.
const MODULES: &[&str] = &["virtio_pci", "virtio_net", "tun"];
/// Further ones of guests with a NIC for VFIO.
const VFIO: &[&str] = &["vfio-pci", "vfio_iommu_type1"];

/// Modules that tests load, by the list in `/modules` that names them: the kernel's driver of the
/// NIC; its bridge and its classifiers; vhost-net.
const LATER: &[(&str, &[&str])] = &[
    ("e1000e", &["e1000e"]),
    ("switching", &["bridge", "veth", "sch_ingress", "cls_matchall", "act_gact"]),
    ("vhost", &["vhost_net"]),
];

/// The first program: mounts, loads modules, then runs the commands of the second serial line.
const INIT: &str = "\
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/ TERM=dumb
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/net
# The root has half of the memory beside the archive, and its files fill most of that.
mount -t tmpfs -o size=50%,mode=1777 tmp /tmp
chmod 755 /
for module in $(cat /modules/order); do insmod /modules/$module || echo \"insmod $module failed\" >/dev/ttyS0; done
ip link set lo up
# A shell whose output is no terminal prints no prompts.
exec setsid sh -c 'stty raw -echo; echo; echo @ready; sh 2>&1 | cat' </dev/ttyS1 >/dev/ttyS1 2>&1
";

/// Programs of this machine, and the folders that get them. Busybox has others of the names in
/// `iproute2`.
const INSTALLED: &[(&str, &str)] = &[("iperf3", "bin"), ("ip", "iproute2"), ("bridge", "iproute2"), ("tc", "iproute2")];

const USERS: &str = "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n";

/// The cache folder, kept between runs.
pub(crate) fn cache() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("vm")
}

/// Builds the archive; returns its path.
pub(crate) fn build(kernel: &Kernel) -> Result<PathBuf, String> {
    let mut image = Cpio::new();
    for folder in ["bin", "dev", "proc", "sys", "run", "tmp", "etc", "modules", "var", "var/run"] {
        image.folder(folder);
    }
    // The kernel opens it for the first program before /dev is mounted.
    image.device("dev/console", 5, 1);
    image.program("init", INIT.as_bytes());
    image.file("etc/passwd", USERS.as_bytes());
    let busybox =
        ["/usr/bin/busybox", "/bin/busybox"].map(PathBuf::from).into_iter().find(|path| needs_no_library(path));
    image.program("bin/busybox", &read(&busybox.ok_or("busybox-static is not installed")?)?);
    let mut linked = Vec::new();
    for (name, program) in programs()? {
        image.program(&format!("bin/{name}"), &stripped(&program)?);
        linked.push(program);
    }
    // Guests with a later kernel have no NIC for VFIO.
    let vfio = kernel.release == Release::Installed;
    let modules = if vfio { [VFIO, MODULES].concat() } else { MODULES.to_vec() };
    let first = kernel.modules(&modules);
    let later = LATER.iter().map(|(list, wanted)| {
        let modules = kernel.modules(&[&modules, *wanted].concat()).split_off(first.len());
        (*list, modules)
    });
    let lists: Vec<_> = later.collect();
    for (list, modules) in [("order", first)].into_iter().chain(lists) {
        let mut order = String::new();
        for (name, path) in modules {
            image.file(&format!("modules/{name}.ko"), &read(&path)?);
            order += &format!("{name}.ko\n");
        }
        image.file(&format!("modules/{list}"), order.as_bytes());
    }
    if vfio {
        linked.extend(testpmd(&mut image)?);
    }
    for (program, folder) in INSTALLED {
        linked.extend(installed(&mut image, program, folder)?);
    }
    libraries(&mut image, &linked)?;
    let path = cache().join(format!("{}.initrd", kernel.release.package()));
    std::fs::write(&path, image.finish()).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(path)
}

/// Adds DPDK's `testpmd` with the driver of the NIC, if they are installed; returns their files.
fn testpmd(image: &mut Cpio) -> Result<Vec<PathBuf>, String> {
    let program = PathBuf::from("/usr/bin/dpdk-testpmd");
    let mut drivers: Vec<_> =
        ["librte_net_e1000.so", "librte_mempool_ring.so"].into_iter().filter_map(plugin).collect();
    if !program.exists() || drivers.is_empty() {
        return Ok(Vec::new());
    }
    image.folder("pmd");
    for driver in &drivers {
        let name = driver.file_name().unwrap_or_default().to_string_lossy().into_owned();
        image.program(&format!("pmd/{name}"), &read(driver)?);
    }
    image.program("bin/testpmd", &read(&program)?);
    drivers.push(program);
    Ok(drivers)
}

/// Adds a program, if it is installed; returns its file.
fn installed(image: &mut Cpio, program: &str, folder: &str) -> Result<Option<PathBuf>, String> {
    let Some(program) =
        ["/usr/bin", "/usr/sbin", "/sbin"].map(|at| Path::new(at).join(program)).into_iter().find(|p| p.exists())
    else {
        return Ok(None);
    };
    image.folder(folder);
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    image.program(&format!("{folder}/{name}"), &read(&program)?);
    Ok(Some(program))
}

/// Adds the shared libraries of programs, each once.
fn libraries(image: &mut Cpio, of: &[PathBuf]) -> Result<(), String> {
    let mut libraries = BTreeSet::new();
    for file in of {
        let listed = succeed(Command::new("ldd").arg(file));
        let paths = listed.split_whitespace().filter(|word| word.starts_with('/'));
        libraries.extend(paths.map(str::to_owned));
    }
    // In this order, a folder follows the one that it is in.
    let folders: BTreeSet<_> = libraries.iter().flat_map(|library| Path::new(library).ancestors().skip(1)).collect();
    for name in folders.into_iter().map(Path::to_string_lossy).filter(|name| name.len() > 1) {
        image.folder(name.trim_start_matches('/'));
    }
    for library in &libraries {
        image.program(library.trim_start_matches('/'), &read(Path::new(library))?);
    }
    Ok(())
}

/// A driver of DPDK: it lies in a folder of its release, in a folder of the architecture.
fn plugin(name: &str) -> Option<PathBuf> {
    let below = |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let releases = below("/usr/lib".into()).flat_map(|architecture| below(architecture.join("dpdk")));
    releases.map(|release| release.join(name)).find(|file| file.exists())
}

fn needs_no_library(program: &Path) -> bool {
    let tells = run(Command::new("ldd").arg(program));
    let text = [tells.stdout, tells.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    text.contains("statically linked") || text.contains("not a dynamic executable")
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// A program without its symbols: the guest's memory holds the archive.
fn stripped(program: &Path) -> Result<Vec<u8>, String> {
    let beside = cache().join("stripped");
    succeed(Command::new("strip").arg("-o").arg(&beside).arg(program));
    read(&beside)
}

/// Builds the programs; returns their names and files.
fn programs() -> Result<Vec<(&'static str, PathBuf)>, String> {
    // The command as users build it. The others with the features of the workspace without it, as
    // CI builds benchmarks and examples: what they depend on is built once.
    let mut made = executables(&["--package", "towpath-cli", "--bin", "towpath"])?;
    let others = ["--workspace", "--exclude", "towpath-cli", "--example", "vfio_proof", "--test", "learning_bridge"];
    made.extend(executables(&others)?);
    let program = |name: &'static str| {
        let found = made.iter().find(|(built, _)| built == name);
        found.map(|(_, path)| (name, path.clone())).ok_or_else(|| format!("cargo made no {name}"))
    };
    ["towpath", "vfio_proof", "learning_bridge"].into_iter().map(program).collect()
}

/// Runs `cargo build --release`; returns the names and files of the programs that it made.
fn executables(of: &[&str]) -> Result<Vec<(String, PathBuf)>, String> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().ok_or("there is no folder of what is built")?;
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--locked", "--quiet", "--release", "--message-format=json"]).args(of);
    cargo.arg("--manifest-path").arg(workspace.join("Cargo.toml")).arg("--target-dir").arg(target);
    let output = cargo.output().map_err(|e| format!("{cargo:?}: {e}"))?;
    assert!(output.status.success(), "{cargo:?}: {}", String::from_utf8_lossy(&output.stderr));
    let messages = output.stdout.split(|byte| *byte == b'\n');
    let messages = messages.filter_map(|line| serde_json::from_slice::<serde_json::Value>(line).ok());
    let program = |message: serde_json::Value| {
        let path = message["executable"].as_str()?;
        Some((message["target"]["name"].as_str()?.to_owned(), PathBuf::from(path)))
    };
    Ok(messages.filter_map(program).collect())
}
