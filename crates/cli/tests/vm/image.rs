//! The boot image: busybox, kernel modules, and statically linked programs of this repository.

use crate::cpio::Cpio;
use crate::kernel::Kernel;
use crate::support::run;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Kernel modules of the guest: VFIO, its own NICs, taps.
const MODULES: &[&str] = &["vfio-pci", "vfio_iommu_type1", "virtio_pci", "virtio_net", "tun"];

/// The first program: mounts, loads modules, then runs the commands of the second serial line.
const INIT: &str = "\
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/ TERM=dumb
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /run /tmp /dev/pts /dev/net
for module in $(cat /modules/order); do insmod /modules/$module || echo \"insmod $module failed\" >/dev/ttyS0; done
ip link set lo up
# A shell whose output is no terminal prints no prompts.
exec setsid sh -c 'stty raw -echo; echo; echo @ready; sh 2>&1 | cat' </dev/ttyS1 >/dev/ttyS1 2>&1
";

const USERS: &str = "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n";

/// The cache folder, kept between runs.
pub(crate) fn cache() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("vm")
}

/// Builds the archive; returns its path.
pub(crate) fn build(kernel: &Kernel) -> Result<PathBuf, String> {
    let mut image = Cpio::new();
    for folder in ["bin", "dev", "proc", "sys", "run", "tmp", "etc", "modules"] {
        image.folder(folder);
    }
    // The kernel opens it for the first program before /dev is mounted.
    image.device("dev/console", 5, 1);
    image.program("init", INIT.as_bytes());
    image.file("etc/passwd", USERS.as_bytes());
    let busybox =
        ["/usr/bin/busybox", "/bin/busybox"].map(PathBuf::from).into_iter().find(|path| needs_no_library(path));
    image.program("bin/busybox", &read(&busybox.ok_or("busybox-static is not installed")?)?);
    for (name, program) in programs()? {
        image.program(&format!("bin/{name}"), &read(&program)?);
    }
    let mut order = String::new();
    for (name, path) in kernel.modules(MODULES) {
        image.file(&format!("modules/{name}.ko"), &read(&path)?);
        order += &format!("{name}.ko\n");
    }
    image.file("modules/order", order.as_bytes());
    let path = cache().join("initrd.img");
    std::fs::write(&path, image.finish()).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(path)
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

/// Builds the programs without shared libraries; returns their names and files.
fn programs() -> Result<Vec<(&'static str, PathBuf)>, String> {
    // With an explicit target the flags do not apply to build scripts and macros, which can't be
    // linked statically.
    const TARGET: &str = "x86_64-unknown-linux-gnu";
    let folder = cache().join("build");
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for wanted in [["-p", "towpath-cli", "--bin", "towpath"], ["-p", "towpath-bus", "--example", "vfio_proof"]] {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--locked", "--quiet", "--release", "--target", TARGET]).args(wanted);
        cargo.arg("--manifest-path").arg(workspace.join("Cargo.toml")).arg("--target-dir").arg(&folder);
        // In an emulated machine the last tenth of speed is worth less than the link time.
        cargo.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
        cargo.env("CARGO_PROFILE_RELEASE_DEBUG", "0");
        cargo.env("RUSTFLAGS", "-Ctarget-feature=+crt-static").env_remove("CARGO_ENCODED_RUSTFLAGS");
        let output = cargo.output().map_err(|e| format!("{cargo:?}: {e}"))?;
        assert!(output.status.success(), "{cargo:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let built = folder.join(TARGET).join("release");
    let programs = [("towpath", built.join("towpath")), ("vfio_proof", built.join("examples/vfio_proof"))];
    for (_, program) in &programs {
        assert!(needs_no_library(program), "{} needs shared libraries", program.display());
    }
    Ok(programs.into())
}
