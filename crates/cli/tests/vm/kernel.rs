//! Kernels to boot: Debian's, unpacked from their packages without installation.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where a kernel is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Release {
    /// The installed release's, with the drivers of real network cards.
    Installed,
    /// The newest for machines in a cloud, of a later release. Its `virtio_net` has zero copy for
    /// AF_XDP, which that of Linux 6.12 refuses.
    Newer,
}

/// The suite of [`Release::Newer`].
const SUITE: &str = "trixie-backports";

/// What is unpacked of a package: the kernel, and the folders of modules that the guest needs.
const PARTS: &[&str] = &[
    "*/vmlinuz*",
    "*/kernel/drivers/net/*",
    "*/kernel/drivers/vfio/*",
    "*/kernel/drivers/vhost/*",
    "*/kernel/drivers/virtio/*",
    "*/kernel/net/802/*",
    "*/kernel/net/bridge/*",
    "*/kernel/net/core/*",
    "*/kernel/net/llc/*",
    "*/kernel/net/sched/*",
    "*/kernel/virt/*",
];

/// The packages of a kernel begin so; it may be one package or several.
const PACKAGES: [&str; 3] = ["linux-image-", "linux-binary-", "linux-modules-"];

/// For a mirror that is slow or briefly unavailable.
const PATIENTLY: [&str; 2] = ["-o", "Acquire::Retries=5"];

pub(crate) struct Kernel {
    pub(crate) release: Release,
    /// What was unpacked.
    root: PathBuf,
}

impl Release {
    /// The package that depends on the newest kernel; the name of the kernel in the cache.
    pub(crate) fn package(self) -> &'static str {
        match self {
            Release::Installed => "linux-image-amd64",
            Release::Newer => "linux-image-cloud-amd64",
        }
    }
}

impl Kernel {
    /// The kernel's files in `cache`, downloaded if they are missing; the error is the reason.
    pub(crate) fn fetch(cache: &Path, release: Release) -> Result<Kernel, String> {
        let name = release.package();
        std::fs::create_dir_all(cache).map_err(|e| format!("{}: {e}", cache.display()))?;
        let kernel = Kernel { release, root: cache.join(name) };
        let parts = PARTS.join("\n");
        let is_whole = || std::fs::read_to_string(kernel.root.join("parts")).is_ok_and(|unpacked| unpacked == parts);
        if kernel.image().is_none() || !is_whole() {
            let packages = packages(cache, release)?;
            // Unpacked under another name and renamed, so that an incomplete tree is never used.
            let beside = empty(cache.join(format!("{name}.unpacking")))?;
            for package in packages {
                unpack(&package, &beside)?;
            }
            extract(&beside)?;
            decompress(&beside)?;
            std::fs::write(beside.join("parts"), &parts).map_err(|e| format!("{}: {e}", beside.display()))?;
            let _ = std::fs::remove_dir_all(&kernel.root);
            std::fs::rename(&beside, &kernel.root).map_err(|e| e.to_string())?;
        }
        if kernel.image().is_some() { Ok(kernel) } else { Err(format!("there is no kernel in {name}")) }
    }

    /// The kernel: decompressed if QEMU boots that, otherwise as the package has it.
    pub(crate) fn image(&self) -> Option<PathBuf> {
        let extracted = Some(self.root.join(EXTRACTED)).filter(|path| path.exists());
        extracted.or_else(|| packed(&self.root))
    }

    /// The files of modules and of their dependencies, in load order.
    pub(crate) fn modules(&self, wanted: &[&str]) -> Vec<(String, PathBuf)> {
        let modules = files(&self.root).into_iter().filter(|path| path.extension().is_some_and(|e| e == "ko"));
        let named = |path: PathBuf| {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().replace('-', "_");
            (name, path)
        };
        let all = modules.map(named).collect();
        let mut ordered = Vec::new();
        for name in wanted {
            with_needs(&all, name, &mut ordered);
        }
        ordered
    }
}

/// Makes a folder, which is empty.
fn empty(folder: PathBuf) -> Result<PathBuf, String> {
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    Ok(folder)
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// The kernel's packages, as files in the cache.
fn packages(cache: &Path, release: Release) -> Result<Vec<PathBuf>, String> {
    let kept = cache.join(format!("{}.packages", release.package()));
    if !kept.exists() {
        // Downloaded under another name and renamed, so that an incomplete file is never used.
        let beside = empty(cache.join(format!("{}.fetching", release.package())))?;
        match release {
            Release::Installed => download(&[], release.package(), &beside).or_else(|why| {
                // The package lists may be old and name a version that the mirror no longer has.
                update(&[]).map_err(|also| format!("{why}; {also}"))?;
                download(&[], release.package(), &beside)
            })?,
            Release::Newer => {
                let apt = later_suite(&empty(cache.join(SUITE))?)?;
                update(&apt)?;
                download(&apt, release.package(), &beside)?;
            }
        }
        std::fs::rename(&beside, &kept).map_err(|e| format!("{}: {e}", beside.display()))?;
    }
    Ok(files(&kept).into_iter().filter(|path| path.extension().is_some_and(|e| e == "deb")).collect())
}

/// Options for apt to use [`SUITE`] alone, from the mirror that it is set up with. Its lists lie in
/// `folder`; those of the machine are not touched. Signatures are checked as always.
fn later_suite(folder: &Path) -> Result<Vec<String>, String> {
    let known = || {
        let mut targets = Command::new("apt-get");
        targets.args(["indextargets", "--format", "$(LABEL) $(REPO_URI)", "Created-By: Packages"]);
        let listed = run(&mut targets)?;
        Ok(listed.lines().find_map(|line| line.strip_prefix("Debian ")).map(str::to_owned))
    };
    let mirror = match known()? {
        Some(mirror) => Some(mirror),
        // Without package lists apt names no mirror.
        None => update(&[]).and_then(|()| known())?,
    };
    let mirror = mirror.ok_or("apt is set up with no mirror of Debian")?;
    let list = folder.join("sources.list");
    std::fs::write(&list, format!("deb {mirror} {SUITE} main\n")).map_err(|e| format!("{}: {e}", list.display()))?;
    let within = |option: &str, path: PathBuf| ["-o".to_owned(), format!("{option}={}", path.display())];
    let options = [
        within("Dir::Etc::SourceList", list),
        within("Dir::Etc::SourceParts", "/dev/null".into()),
        within("Dir::State::Lists", empty(folder.join("lists"))?),
        within("Dir::Cache", empty(folder.join("cache"))?),
        // An index that can't be fetched is a mere warning otherwise.
        ["-o".to_owned(), "APT::Update::Error-Mode=any".to_owned()],
    ];
    Ok(options.concat())
}

fn update(apt: &[String]) -> Result<(), String> {
    run(Command::new("apt-get").args(PATIENTLY).args(apt).arg("update")).map(drop)
}

/// Downloads the packages of the newest kernel into a folder.
fn download(apt: &[String], newest: &str, folder: &Path) -> Result<(), String> {
    let (mut names, mut todo) = (BTreeSet::new(), vec![newest.to_owned()]);
    while let Some(name) = todo.pop() {
        let depends = run(Command::new("apt-cache").args(apt).args(["depends", &name]))?;
        let needs = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
        todo.extend(needs.filter(|need| PACKAGES.iter().any(|begin| need.starts_with(begin))).map(str::to_owned));
        names.insert(name);
    }
    if names.len() < 2 {
        return Err(format!("apt knows no kernel by {newest}: apt-get update"));
    }
    run(Command::new("apt-get").args(PATIENTLY).args(apt).arg("download").args(names).current_dir(folder)).map(drop)
}

/// Unpacks [`PARTS`] of a package into a folder. A package may have some of them only.
fn unpack(package: &Path, folder: &Path) -> Result<(), String> {
    let mut open = Command::new("dpkg-deb").arg("--fsys-tarfile").arg(package).stdout(Stdio::piped()).spawn();
    let archive = open.as_mut().map_err(|e| format!("dpkg-deb: {e}"))?.stdout.take().ok_or("dpkg-deb: no output")?;
    let mut tar = Command::new("tar");
    tar.args(["-x", "--wildcards", "-C"]).arg(folder).args(PARTS).stdin(archive).env("LC_ALL", "C");
    let done = tar.output().map_err(|e| format!("tar: {e}"))?;
    let errors = String::from_utf8_lossy(&done.stderr);
    let absent = |line: &str| line.ends_with("Not found in archive") || line.ends_with("due to previous errors");
    if !done.status.success() && !errors.lines().all(absent) {
        return Err(format!("tar: {}: {errors}", package.display()));
    }
    let ended = open.and_then(|mut child| child.wait()).map_err(|e| format!("dpkg-deb: {e}"))?;
    if ended.success() { Ok(()) } else { Err(format!("dpkg-deb {}: {ended}", package.display())) }
}

/// The kernel as the package has it: it decompresses itself.
fn packed(folder: &Path) -> Option<PathBuf> {
    let is_kernel =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"vmlinuz"));
    files(folder).into_iter().find(is_kernel)
}

/// The name of the kernel beside the one of the package, decompressed.
const EXTRACTED: &str = "vmlinux";

/// Writes what a kernel decompresses into a file of its own, if that is an XZ stream and `xz` is
/// installed: an emulated processor takes seconds for it at each boot. The header of the kernel has
/// the place (Linux `Documentation/arch/x86/boot.rst`).
fn extract(folder: &Path) -> Result<(), String> {
    let Some(packed) = packed(folder) else { return Ok(()) };
    let image = std::fs::read(&packed).map_err(|e| format!("{}: {e}", packed.display()))?;
    let number = |at: usize| Some(u32::from_le_bytes(image.get(at..at + 4)?.try_into().ok()?) as usize);
    // `setup_sects`, `payload_offset`, `payload_length`. The last four bytes are the kernel's
    // length.
    let payload = || {
        let begin = (usize::from(*image.get(0x1f1)?) + 1) * 512 + number(0x248)?;
        image.get(begin..begin + number(0x24c)?.checked_sub(4)?)
    };
    let Some(stream) = payload().filter(|stream| stream.starts_with(b"\xfd7zXZ\0")) else { return Ok(()) };
    let (path, stored) = (folder.join(EXTRACTED), folder.join("vmlinux.stream"));
    std::fs::write(&stored, stream).map_err(|e| format!("{}: {e}", stored.display()))?;
    let file = std::fs::File::create(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    // Busybox lacks the filter for x86 code, with which kernels are compressed.
    let done = Command::new("xz").args(["--format=xz", "--decompress", "--stdout"]).arg(&stored).stdout(file).status();
    if !done.is_ok_and(|status| status.success()) || !is_bootable(&path) {
        let _ = std::fs::remove_file(&path);
    }
    std::fs::remove_file(&stored).map_err(|e| format!("{}: {e}", stored.display()))
}

/// Whether QEMU boots a decompressed kernel: a note of the ELF file has the entry for it
/// (`XEN_ELFNOTE_PHYS32_ENTRY`).
fn is_bootable(kernel: &Path) -> bool {
    const NOTE: u64 = 4;
    const ENTRY: &[u8] = b"\x12\0\0\0Xen\0";
    let elf = std::fs::read(kernel).unwrap_or_default();
    let number = |at: u64, bytes: usize| {
        let field = elf.get(at as usize..)?.get(..bytes)?;
        Some(field.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte)))
    };
    // Of the file: place, size and number of its segments' headers. Of a segment: type, place,
    // size.
    let headers = || Some((number(32, 8)?, number(54, 2)?, number(56, 2)?));
    let Some((begin, size, count)) = headers().filter(|_| elf.starts_with(b"\x7fELF")) else { return false };
    let notes = (0..count).map(|n| begin + n * size).filter(|at| number(*at, 4) == Some(NOTE));
    let mut notes = notes.filter_map(|at| elf.get(number(at + 8, 8)? as usize..)?.get(..number(at + 32, 8)? as usize));
    notes.any(|note| note.windows(ENTRY.len()).any(|window| window == ENTRY))
}

/// Decompresses the modules below a folder.
fn decompress(folder: &Path) -> Result<(), String> {
    let modules: Vec<_> =
        files(folder).into_iter().filter(|path| path.extension().is_some_and(|e| e == "xz")).collect();
    if modules.is_empty() { Ok(()) } else { run(Command::new("busybox").arg("unxz").args(modules)).map(drop) }
}

/// The output of a program, or why it failed.
fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    let error = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() { Ok(printed) } else { Err(format!("{command:?}: {error}")) }
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
