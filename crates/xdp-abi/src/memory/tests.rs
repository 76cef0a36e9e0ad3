use super::*;
use libc::{MAP_ANONYMOUS, MAP_PRIVATE, MAP_SHARED};
use std::ptr::null_mut;
use towpath_packet::UntrustedMem;

const PAGE: usize = 4096;

fn map(len: usize, flags: i32, file: i32) -> *mut u8 {
    // SAFETY: a new mapping.
    let at = unsafe { libc::mmap(null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, file, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.cast()
}

fn share(at: *mut u8, len: usize) -> Result<ProgramMemory, i32> {
    // SAFETY: the memory is the test's own, or is refused.
    unsafe { ProgramMemory::share(at, len) }.map_err(|failure| failure.errno)
}

/// Writes a pattern, or checks it.
fn write(at: *mut u8, len: usize, seed: usize) {
    // SAFETY: the memory is the test's own.
    (0..len).for_each(|i| unsafe { at.add(i).write_volatile((i * 7 + seed) as u8) });
}
fn holds(at: *const u8, len: usize, seed: usize) -> bool {
    // SAFETY: as above.
    (0..len).all(|i| unsafe { at.add(i).read_volatile() } == (i * 7 + seed) as u8)
}

fn shares_and_gives_back(at: *mut u8, len: usize) {
    write(at, len, 1);
    let memory = share(at, len).unwrap();
    assert!(holds(at, len, 1), "the bytes are the same");
    let other = UntrustedMem::from_memfd(memory.file().try_clone_to_owned().unwrap(), len).unwrap();
    let other = other.handle();
    assert!(holds(other.base().as_ptr(), len, 1));
    write(other.base().as_ptr(), len, 2);
    assert!(holds(at, len, 2), "what the other side writes is here");
    drop(memory);
    assert!(holds(at, len, 2), "the bytes are the same");
    write(other.base().as_ptr(), len, 3);
    assert!(holds(at, len, 2), "it is private again");
}

#[test]
fn memory_is_shared_at_its_addresses_and_private_again_afterwards() {
    let len = 16 * PAGE;
    shares_and_gives_back(map(len, MAP_PRIVATE | MAP_ANONYMOUS, -1), len);
    // In the middle of a mapping.
    let at = map(3 * len, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    write(at, 3 * len, 9);
    // SAFETY: inside of the mapping.
    shares_and_gives_back(unsafe { at.add(len) }, len);
    assert!(holds(at, len, 9), "what lies around it is untouched");
}

#[test]
fn memory_of_the_allocator_can_be_shared_and_freed_small_and_large() {
    for len in [4 * PAGE, 512 * PAGE] {
        let mut at = null_mut();
        // SAFETY: the allocator's function, and memory that is freed once.
        unsafe {
            assert_eq!(libc::posix_memalign(&mut at, PAGE, len), 0);
            shares_and_gives_back(at.cast(), len);
            libc::free(at);
        }
    }
}

#[test]
fn memory_that_the_program_has_unmapped_or_used_otherwise_is_left_alone() {
    let len = 4 * PAGE;
    let at = map(len, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    let memory = share(at, len).unwrap();
    // SAFETY: the mapping is the test's own; its first page becomes another one.
    unsafe {
        let flags = MAP_PRIVATE | MAP_ANONYMOUS | libc::MAP_FIXED;
        assert_eq!(libc::mmap(at.cast(), PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0), at.cast());
        at.write_volatile(77);
    }
    drop(memory);
    // SAFETY: as above.
    assert_eq!(unsafe { at.read_volatile() }, 77);
}

#[test]
fn a_last_page_that_is_not_used_wholly_is_shared_wholly() {
    let at = map(2 * PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    write(at, 2 * PAGE, 5);
    let memory = share(at, PAGE + 100).unwrap();
    assert!(holds(at, 2 * PAGE, 5));
    drop(memory);
    assert!(holds(at, 2 * PAGE, 5));
}

#[test]
fn memory_that_does_not_begin_at_a_page_is_refused() {
    let at = map(2 * PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    for (skip, len) in [(0, 0), (1, PAGE), (2048, 2048), (0, usize::MAX)] {
        assert_eq!(share(at.wrapping_add(skip), len).err(), Some(libc::EINVAL), "{skip} {len}");
    }
}

#[test]
fn memory_that_is_not_all_mapped_and_writable_is_refused() {
    let at = map(4 * PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    // SAFETY: the mapping is the test's own.
    unsafe { libc::munmap(at.add(PAGE).cast(), PAGE) };
    assert_eq!(share(at, 2 * PAGE).err(), Some(libc::EFAULT));
    assert_eq!(share(null_mut(), PAGE).err(), Some(libc::EFAULT));
    assert_eq!(share((usize::MAX - PAGE + 1) as *mut u8, 2 * PAGE).err(), Some(libc::EFAULT));
    // SAFETY: as above.
    unsafe { libc::mprotect(at.add(2 * PAGE).cast(), PAGE, libc::PROT_READ) };
    assert_eq!(share(at.wrapping_add(2 * PAGE), 2 * PAGE).err(), Some(libc::EFAULT));
}

#[test]
fn memory_that_others_may_see_is_refused() {
    let shared = map(PAGE, MAP_SHARED | MAP_ANONYMOUS, -1);
    assert_eq!(share(shared, PAGE).err(), Some(libc::EOPNOTSUPP));
    let file = tempfile();
    for flags in [MAP_SHARED, MAP_PRIVATE] {
        assert_eq!(share(map(PAGE, flags, file.as_raw_fd()), PAGE).err(), Some(libc::EOPNOTSUPP));
    }
}

fn tempfile() -> std::fs::File {
    let path = std::env::temp_dir().join(format!("towpath-xdp-{}", std::process::id()));
    let file = std::fs::File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file.set_len(PAGE as u64).unwrap();
    file
}

#[test]
fn memory_that_ends_inside_of_a_huge_page_is_shared_to_its_end() {
    let line = |name: &str| Mapping {
        range: 2 * HUGE_PAGE..5 * HUGE_PAGE,
        mode: "rw-p".to_owned(),
        offset: 0,
        inode: 7,
        name: name.to_owned(),
    };
    let (huge, small) = ([line("/anon_hugepage (deleted)")], [line("")]);
    let end = 4 * HUGE_PAGE;
    assert_eq!(whole_end(&huge, end - 1), end);
    assert_eq!(whole_end(&huge, end), end);
    assert_eq!(whole_end(&huge, end + PAGE), end + HUGE_PAGE);
    assert_eq!(whole_end(&small, end - PAGE), end - PAGE);
    assert_eq!(whole_end(&[], end - PAGE), end - PAGE);
}

#[test]
fn memory_without_another_user_can_be_replaced_with_the_setting() {
    let line = |mode: &str, inode, name: &str| Mapping {
        range: 0..PAGE,
        mode: mode.to_owned(),
        offset: 0,
        inode,
        name: name.to_owned(),
    };
    let memfd = line("rw-s", 7, "/memfd:nohuge (deleted)");
    assert!(
        refuse(&memfd, false).is_some_and(|f| f.why.contains("TOWPATH_XDP_UMEM")) && refuse(&memfd, true).is_none()
    );
    assert!(refuse(&line("rw-p", 7, "/anon_hugepage (deleted)"), false).is_none());
    assert!(refuse(&line("rw-p", 0, "[heap]"), false).is_none());
    for bad in [line("rw-p", 0, "[stack]"), line("rwxp", 0, ""), line("rw-s", 7, "/tmp/file"), line("r--p", 0, "")] {
        assert!(refuse(&bad, true).is_some(), "{bad:?}");
    }
}
