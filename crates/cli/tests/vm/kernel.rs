//! A kernel to boot: Debian's, with the drivers of real network cards, unpacked from its package
//! without installation.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The package that depends on the newest kernel.
const NEWEST: &str = "linux-image-amd64";

/// What is unpacked of the package: the kernel, and the folders of modules that the guest needs.
const PARTS: &[&str] = &[
    "./boot/vmlinuz-*",
    "./lib/modules/*/kernel/drivers/net/*",
    "./lib/modules/*/kernel/drivers/vfio/*",
    "./lib/modules/*/kernel/drivers/virtio/*",
    "./lib/modules/*/kernel/net/core/*",
    "./lib/modules/*/kernel/virt/*",
];

/// For a mirror that is slow or briefly unavailable.
const PATIENTLY: [&str; 2] = ["-o", "Acquire::Retries=5"];

pub(crate) struct Kernel {
    /// `boot/` and `lib/modules/`.
    root: PathBuf,
}

impl Kernel {
    /// The kernel's files in `cache`, downloaded if they are missing; the error is the reason.
    pub(crate) fn fetch(cache: &Path) -> Result<Kernel, String> {
        std::fs::create_dir_all(cache).map_err(|e| format!("{}: {e}", cache.display()))?;
        let kernel = Kernel { root: cache.join(NEWEST) };
        if kernel.image().is_none() {
            let package = package(cache)?;
            // Unpacked under another name and renamed, so that an incomplete tree is never used.
            let beside = cache.join("unpacking");
            let _ = std::fs::remove_dir_all(&beside);
            std::fs::create_dir_all(&beside).map_err(|e| format!("{}: {e}", beside.display()))?;
            unpack(&package, &beside)?;
            let _ = std::fs::remove_dir_all(&kernel.root);
            std::fs::rename(&beside, &kernel.root).map_err(|e| e.to_string())?;
        }
        if kernel.image().is_some() { Ok(kernel) } else { Err(format!("there is no kernel in {NEWEST}")) }
    }

    /// The kernel itself.
    pub(crate) fn image(&self) -> Option<PathBuf> {
        let files = std::fs::read_dir(self.root.join("boot")).ok()?;
        let mut files = files.flatten().map(|entry| entry.path());
        files.find(|path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"vmlinuz")))
    }

    /// The files of modules and of their dependencies, in load order.
    pub(crate) fn modules(&self, wanted: &[&str]) -> Vec<(String, PathBuf)> {
        let mut all = BTreeMap::new();
        gather(&self.root.join("lib/modules"), &mut all);
        let mut ordered = Vec::new();
        for name in wanted {
            with_needs(&all, name, &mut ordered);
        }
        ordered
    }
}

/// The package's file in the cache.
fn package(cache: &Path) -> Result<PathBuf, String> {
    let kept = cache.join(format!("{NEWEST}.deb"));
    if kept.exists() {
        return Ok(kept);
    }
    // Downloaded under another name and renamed, so that an incomplete file is never used.
    let beside = cache.join("fetching");
    let _ = std::fs::remove_dir_all(&beside);
    std::fs::create_dir_all(&beside).map_err(|e| format!("{}: {e}", beside.display()))?;
    download(&beside).or_else(|why| {
        // The package lists may be old and name a version that the mirror no longer has.
        run(Command::new("apt-get").args(PATIENTLY).arg("update")).map_err(|also| format!("{why}; {also}"))?;
        download(&beside)
    })?;
    let file = file_in(&beside).ok_or_else(|| format!("apt-get download brought nothing for {NEWEST}"))?;
    std::fs::rename(&file, &kept).map_err(|e| format!("{}: {e}", file.display()))?;
    Ok(kept)
}

/// Unpacks [`PARTS`] of a package into a folder.
fn unpack(package: &Path, folder: &Path) -> Result<(), String> {
    let mut open = Command::new("dpkg-deb").arg("--fsys-tarfile").arg(package).stdout(Stdio::piped()).spawn();
    let archive = open.as_mut().map_err(|e| format!("dpkg-deb: {e}"))?.stdout.take().ok_or("dpkg-deb: no output")?;
    let mut tar = Command::new("tar");
    tar.args(["-x", "--wildcards", "-C"]).arg(folder).args(PARTS).stdin(archive);
    run(&mut tar)?;
    let ended = open.and_then(|mut child| child.wait()).map_err(|e| format!("dpkg-deb: {e}"))?;
    if ended.success() { Ok(()) } else { Err(format!("dpkg-deb {}: {ended}", package.display())) }
}

/// The package file in a folder.
fn file_in(folder: &Path) -> Option<PathBuf> {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    files.filter(|path| path.extension().is_some_and(|e| e == "deb")).max()
}

/// Downloads the newest kernel's package into a folder.
fn download(folder: &Path) -> Result<(), String> {
    let depends = run(Command::new("apt-cache").args(["depends", NEWEST]))?;
    let name = depends.lines().find_map(|line| line.trim().strip_prefix("Depends: "));
    let name = name.ok_or("apt knows no kernel: apt-get update")?;
    run(Command::new("apt-get").args(PATIENTLY).args(["download", name]).current_dir(folder)).map(drop)
}

/// The output of a program, or why it failed.
fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    let error = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() { Ok(printed) } else { Err(format!("{command:?}: {error}")) }
}

/// All modules below a folder, by their kernel names (with underscores).
fn gather(folder: &Path, all: &mut BTreeMap<String, PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            gather(&path, all);
        } else if path.extension().is_some_and(|e| e == "ko") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().replace('-', "_");
            all.insert(name, path);
        }
    }
}

/// Appends a module behind its dependencies, unless it is in the list. Modules without a file are
/// built into the kernel.
fn with_needs(all: &BTreeMap<String, PathBuf>, name: &str, ordered: &mut Vec<(String, PathBuf)>) {
    let name = name.replace('-', "_");
    if ordered.iter().any(|(known, _)| *known == name) {
        return;
    }
    let Some(path) = all.get(&name) else { return };
    let content = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    // In the section .modinfo: "depends=a,b" between zeros.
    let key = b"\0depends=";
    if let Some(at) = content.windows(key.len()).position(|window| window == key) {
        let list = content[at + key.len()..].split(|&byte| byte == 0).next().unwrap_or_default();
        for need in String::from_utf8_lossy(list).split(',').filter(|need| !need.is_empty()) {
            with_needs(all, need, ordered);
        }
    }
    ordered.push((name, path.clone()));
}
