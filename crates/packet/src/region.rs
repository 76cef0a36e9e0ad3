//! Memory regions: one mapping each, never required to be special.
//!
//! A [`Region`] is page-aligned memory that stays in place until its last user is dropped. It can
//! be anonymous, made of huge pages, or a memfd whose descriptor another process maps. Huge pages
//! are optional: if the machine has none reserved, [`Backing::HugePreferred`] requests transparent
//! ones and [`Region::backing`] returns the result.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Weak};
use towpath_sys::memfd;
use towpath_sys::mmap::{Mmap, page_size};

/// Size of a huge page that [`Region`] requests: 2 MiB, the smallest on x86-64 and arm64 with 4 KiB
/// pages.
const HUGE_PAGE: usize = 2 << 20;

/// The kind of a region's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backing {
    /// Private anonymous pages of the machine's base size.
    Anonymous,
    /// Reserved huge pages if there are enough, else anonymous pages with transparent huge pages
    /// requested.
    HugePreferred,
    /// Reserved huge pages (`vm.nr_hugepages`), or an error.
    Huge,
    /// A sealed memfd that can neither shrink nor grow, so that its descriptor can be passed to
    /// another process. All its pages exist from the beginning: they count against the memory of
    /// this process, and not against that of the other one.
    Memfd,
}

/// Why a region could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// A length of zero, or one that overflows when rounded up to whole pages.
    #[error("region of {0} bytes: a length from 1 byte to half of the address space is needed")]
    Length(usize),
    /// The kernel refused the named step.
    #[error("region of {len} bytes: {step}: {source}")]
    Os {
        /// Requested length, in bytes.
        len: usize,
        /// The system call.
        step: &'static str,
        /// The error of the kernel.
        source: io::Error,
    },
    /// A memfd of another process that could still shrink: an access behind its new end would kill
    /// the process.
    #[error("shared memory of {len} bytes is not sealed against shrinking (F_SEAL_SHRINK)")]
    NotSealed {
        /// Requested length, in bytes.
        len: usize,
    },
    /// A file of another process that is not in memory.
    #[error("shared memory is not a memfd, nor a file of tmpfs or hugetlbfs")]
    NotMemory,
    /// A memfd of another process that is shorter than announced.
    #[error("shared memory is {actual} bytes long, {len} were announced")]
    Short {
        /// Requested length, in bytes.
        len: usize,
        /// Length of the file, in bytes.
        actual: u64,
    },
}

/// One mapping of page-aligned memory, unmapped when dropped.
///
/// A region returns addresses, not references: the pools and buffers that use it decide which bytes
/// are read or written.
#[derive(Debug)]
pub struct Region {
    memory: Mmap,
    backing: Backing,
    /// The file, and the offset in it at which the region begins.
    file: Option<(OwnedFd, u64)>,
}

impl Region {
    /// Maps at least `len` bytes of zeroed memory.
    ///
    /// # Errors
    /// [`RegionError::Length`] for a length of zero or beyond the address space,
    /// [`RegionError::Os`] if the kernel refuses: out of memory, or no huge pages for
    /// [`Backing::Huge`].
    pub fn new(len: usize, backing: Backing) -> Result<Region, RegionError> {
        match backing {
            Backing::Anonymous => Region::anonymous(round_up(len, page_size())?, backing),
            Backing::Huge => Region::anonymous(round_up(len, HUGE_PAGE)?, backing),
            Backing::HugePreferred => Region::new(len, Backing::Huge).or_else(|_| {
                let region = Region::new(len, Backing::Anonymous)?;
                region.memory.advise_huge();
                Ok(region)
            }),
            Backing::Memfd => {
                let len = round_up(len, page_size())?;
                let fd = sealed_memfd(len)?;
                let region = Region::shared(fd, 0, len)?;
                region.memory.populate().map_err(|error| refused(len, "madvise(MADV_POPULATE_WRITE)", error))?;
                Ok(region)
            }
        }
    }

    /// Maps `len` bytes of a memfd from `offset` on, a multiple of the page size.
    ///
    /// # Safety
    /// The bytes are the caller's to give out: no other process, and nothing else in this one,
    /// writes to them while they are accessed through the region.
    /// [`UntrustedMem::from_memfd`](crate::UntrustedMem::from_memfd) maps the memory of others.
    ///
    /// # Errors
    /// [`RegionError::NotSealed`] unless the file is sealed against shrinking,
    /// [`RegionError::Short`] if it is shorter than `offset + len`, [`RegionError::Os`] if it
    /// cannot be examined or mapped; an offset that is no multiple of the page size is refused by
    /// the kernel.
    pub unsafe fn from_memfd_at(fd: OwnedFd, offset: usize, len: usize) -> Result<Region, RegionError> {
        Region::map_memfd(fd, offset, len)
    }

    /// As [`from_memfd_at`](Region::from_memfd_at), for a type that makes no references.
    pub(crate) fn map_memfd(fd: OwnedFd, offset: usize, len: usize) -> Result<Region, RegionError> {
        let rounded = round_up(len, page_size())?;
        let end = offset.checked_add(rounded).ok_or(RegionError::Length(len))?;
        // SAFETY: fcntl with F_GET_SEALS takes no pointer.
        let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 {
            return Err(os(len, "fcntl(F_GET_SEALS)"));
        }
        if seals & libc::F_SEAL_SHRINK == 0 {
            return Err(RegionError::NotSealed { len });
        }
        let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
        // SAFETY: the pointer is to a stat-sized buffer that lives across the call.
        if unsafe { libc::fstat(fd.as_raw_fd(), stat.as_mut_ptr()) } != 0 {
            return Err(os(len, "fstat"));
        }
        // SAFETY: fstat returned 0, so the kernel filled the whole structure.
        let actual = unsafe { stat.assume_init() }.st_size as u64;
        if actual < end as u64 {
            return Err(RegionError::Short { len, actual });
        }
        Region::shared(fd, offset, rounded)
    }

    /// Maps the first `len` bytes of a file in memory, whatever its seals, for a type that makes no
    /// references.
    pub(crate) fn map_guarded(fd: OwnedFd, len: usize) -> Result<Region, RegionError> {
        // The seals first: no file system is asked about a file that has none.
        memfd::seals(fd.as_fd()).map_err(|_| RegionError::NotMemory)?;
        let (actual, unit) = memfd::size(fd.as_fd()).map_err(|error| refused(len, "fstat", error))?;
        if actual < len as u64 {
            return Err(RegionError::Short { len, actual });
        }
        let memory = Mmap::guarded(fd.as_fd(), round_up(len, unit)?).map_err(|error| refused(len, "mmap", error))?;
        Ok(Region { memory, backing: Backing::Memfd, file: None })
    }

    fn anonymous(len: usize, backing: Backing) -> Result<Region, RegionError> {
        let memory = Mmap::anonymous(len, backing == Backing::Huge).map_err(|error| refused(len, "mmap", error))?;
        Ok(Region { memory, backing, file: None })
    }

    fn shared(fd: OwnedFd, offset: usize, len: usize) -> Result<Region, RegionError> {
        let memory = Mmap::shared(fd.as_fd(), offset as u64, len).map_err(|error| refused(len, "mmap", error))?;
        Ok(Region { memory, backing: Backing::Memfd, file: Some((fd, offset as u64)) })
    }

    /// First byte, page-aligned.
    pub fn base(&self) -> NonNull<u8> {
        self.memory.base()
    }

    /// Length in bytes, a multiple of the page size.
    #[allow(clippy::len_without_is_empty)] // a region is never empty
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// The kind of the memory that was obtained.
    pub fn backing(&self) -> Backing {
        self.backing
    }

    /// Whether bytes of a mapping were accessed that its file no longer has.
    pub(crate) fn is_lost(&self) -> bool {
        self.memory.is_lost()
    }

    /// The memfd behind the region, for another process; `None` for private memory.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(|(fd, _)| fd.as_fd())
    }

    /// The address of `offset`, if `offset + len` lies inside.
    pub fn at(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        self.memory.at(offset, len)
    }
}

/// A handle of a region, by which a device or the kernel can map it: an address range that stays in
/// place as long as the handle lives.
///
/// A pool gives out this handle, and not the [`Region`]: neither another pool nor
/// [`UntrustedMem`](crate::UntrustedMem) can be made of it, and it has no descriptor that could be
/// mapped again.
///
/// ```compile_fail,E0308
/// use towpath_packet::{Backing, Pool, PoolConfig, UntrustedMem};
/// let pool = Pool::new(PoolConfig::default().backing(Backing::Memfd)).unwrap();
/// // Writes to the bytes of the pool's packets, of which there are references.
/// let alias = UntrustedMem::new(pool.region().unwrap().clone());
/// alias.put(0, b"bytes");
/// ```
///
/// ```compile_fail,E0599
/// use towpath_packet::{Backing, Pool, PoolConfig};
/// let pool = Pool::new(PoolConfig::default().backing(Backing::Memfd)).unwrap();
/// // A second mapping of the same file would alias the pool as well.
/// let fd = pool.region().unwrap().fd();
/// ```
#[derive(Debug, Clone)]
pub struct RegionHandle(Arc<Region>);

impl RegionHandle {
    /// First byte, page-aligned.
    #[inline]
    pub fn base(&self) -> NonNull<u8> {
        self.0.base()
    }

    /// Length in bytes, a multiple of the page size.
    #[allow(clippy::len_without_is_empty)] // a region is never empty
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The address of `offset`, if `offset + len` lies inside.
    #[inline]
    pub fn at(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        self.0.at(offset, len)
    }

    /// Whether both are handles of the same region.
    pub fn is_same(&self, other: &RegionHandle) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether there is no other handle.
    pub fn is_last(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// A handle that does not keep the region.
    pub fn downgrade(&self) -> WeakRegionHandle {
        WeakRegionHandle(Arc::downgrade(&self.0))
    }

    /// The memfd behind the region, and the offset in it at which the region begins, for a device
    /// that is another process (vhost-user); `None` for private memory.
    ///
    /// # Safety
    /// This process does not map the file, and the process that gets it is the device: it writes
    /// only to bytes that are in flight to it, or that are accessed as untrusted.
    pub unsafe fn memfd(&self) -> Option<(BorrowedFd<'_>, u64)> {
        self.0.file.as_ref().map(|(fd, offset)| (fd.as_fd(), *offset))
    }

    pub(crate) fn region(&self) -> &Region {
        &self.0
    }
}

impl From<Region> for RegionHandle {
    fn from(region: Region) -> RegionHandle {
        RegionHandle(Arc::new(region))
    }
}

/// A handle of a region that does not keep it.
#[derive(Debug, Clone)]
pub struct WeakRegionHandle(Weak<Region>);

impl WeakRegionHandle {
    /// Whether the region is gone.
    pub fn is_gone(&self) -> bool {
        self.0.strong_count() == 0
    }

    /// Whether it is a handle of that region.
    pub fn is_of(&self, region: &RegionHandle) -> bool {
        std::ptr::eq(self.0.as_ptr(), Arc::as_ptr(&region.0))
    }
}

fn sealed_memfd(len: usize) -> Result<OwnedFd, RegionError> {
    let name = CString::new("towpath").unwrap_or_default();
    // SAFETY: the name is a NUL-terminated string that lives across the call.
    let raw = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if raw < 0 {
        return Err(os(len, "memfd_create"));
    }
    // SAFETY: the kernel just returned this descriptor and nothing else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
    // SAFETY: ftruncate takes no pointer.
    if unsafe { libc::ftruncate(fd.as_raw_fd(), len as libc::off_t) } != 0 {
        return Err(os(len, "ftruncate"));
    }
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: fcntl with F_ADD_SEALS takes no pointer.
    if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
        return Err(os(len, "fcntl(F_ADD_SEALS)"));
    }
    Ok(fd)
}

fn os(len: usize, step: &'static str) -> RegionError {
    refused(len, step, io::Error::last_os_error())
}

fn refused(len: usize, step: &'static str, source: io::Error) -> RegionError {
    RegionError::Os { len, step, source }
}

fn round_up(len: usize, unit: usize) -> Result<usize, RegionError> {
    let rounded = len.checked_next_multiple_of(unit).filter(|&l| l > 0 && l <= isize::MAX as usize);
    rounded.ok_or(RegionError::Length(len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_zeroed_whole_pages() {
        let r = Region::new(1, Backing::Anonymous).unwrap();
        assert_eq!(r.len() % 4096, 0);
        // SAFETY: the first byte is inside the mapping and nothing else uses it.
        assert_eq!(unsafe { r.base().read() }, 0);
    }

    #[test]
    fn preferring_huge_pages_works_where_there_are_none() {
        let r = Region::new(5000, Backing::HugePreferred).unwrap();
        assert!(matches!(r.backing(), Backing::Huge | Backing::Anonymous));
    }

    #[test]
    fn a_memfd_region_is_shared_by_all_that_map_its_descriptor() {
        let ours = Region::new(8192, Backing::Memfd).unwrap();
        let theirs = Region::map_memfd(ours.fd().unwrap().try_clone_to_owned().unwrap(), 0, 8192).unwrap();
        // SAFETY: both offsets are inside their mappings; the test is the only user.
        unsafe {
            ours.base().add(5000).write(7);
            assert_eq!(theirs.base().add(5000).read(), 7);
        }
    }

    #[test]
    fn a_piece_of_a_memfd_begins_at_its_offset() {
        let whole = Region::new(8192, Backing::Memfd).unwrap();
        let fd = || whole.fd().unwrap().try_clone_to_owned().unwrap();
        let half = Region::map_memfd(fd(), 4096, 4096).unwrap();
        // SAFETY: both offsets are inside their mappings; the test is the only user.
        unsafe {
            whole.base().add(4096).write(9);
            assert_eq!(half.base().read(), 9);
        }
        let err = Region::map_memfd(fd(), 8192, 4096).unwrap_err();
        assert!(matches!(err, RegionError::Short { actual: 8192, .. }), "{err}");
    }

    #[test]
    fn a_memfd_of_another_process_that_could_shrink_or_is_short_is_refused() {
        let file = tempfile_memfd(4096);
        let err = Region::map_memfd(file.as_fd().try_clone_to_owned().unwrap(), 0, 4096).unwrap_err();
        assert!(matches!(err, RegionError::NotSealed { .. }), "{err}");
        let sealed = sealed_memfd(4096).unwrap();
        let err = Region::map_memfd(sealed, 0, 8192).unwrap_err();
        assert!(matches!(err, RegionError::Short { actual: 4096, .. }), "{err}");
    }

    #[test]
    fn impossible_lengths_are_reported() {
        assert!(matches!(Region::new(0, Backing::Anonymous), Err(RegionError::Length(0))));
        assert!(matches!(Region::new(usize::MAX, Backing::Memfd), Err(RegionError::Length(_))));
    }

    #[test]
    fn an_offset_outside_the_region_has_no_address() {
        let r = Region::new(4096, Backing::Anonymous).unwrap();
        assert!(r.at(0, 4096).is_some());
        assert!(r.at(1, 4096).is_none());
        assert!(r.at(usize::MAX, 2).is_none());
    }

    fn tempfile_memfd(len: i64) -> OwnedFd {
        // SAFETY: as in sealed_memfd, without the seals.
        unsafe {
            let fd = OwnedFd::from_raw_fd(libc::memfd_create(c"t".as_ptr(), libc::MFD_ALLOW_SEALING));
            assert_eq!(libc::ftruncate(fd.as_raw_fd(), len), 0);
            fd
        }
    }
}
