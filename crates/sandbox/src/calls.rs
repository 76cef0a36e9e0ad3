//! System calls that a started datapath makes: those of every datapath, and those of each group.
//!
//! A call without a condition is allowed whatever its arguments are. The kernel then decides by a
//! bitmap and runs no filter (since Linux 5.11). A filter sees no memory: what a pointer refers to
//! can't be a condition. Calls that only old architectures have are listed for x86-64 alone.

use libc::*;
use towpath_packet::port::Calls;

/// What an argument must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value {
    /// The lower 32 bits equal this.
    Is(u32),
    /// The bits of the first mask equal the second.
    Bits(u64, u64),
    /// The number of this process.
    OwnProcess,
}

/// One system call that is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Call {
    /// The name of the constant in `libc`.
    constant: &'static str,
    pub(crate) number: c_long,
    /// The argument, counted from 0, that must have one of the values; `None` if any will do.
    pub(crate) when: Option<(u8, &'static [Value])>,
    /// The condition for people.
    pub(crate) text: &'static str,
}

impl Call {
    pub(crate) fn name(&self) -> &'static str {
        self.constant.trim_start_matches("SYS_")
    }
}

macro_rules! calls {
    (@when) => { (None, "") };
    (@when $text:literal, $argument:literal, [$($value:expr),+]) => { (Some(($argument, &[$($value),+])), $text) };
    ($($(#[$cfg:meta])* $number:ident $(if $text:literal: $argument:literal [$($value:expr),+])?,)*) => {
        const { &[$($(#[$cfg])* {
            let (when, text): (Option<(u8, &'static [Value])>, &'static str) =
                calls!(@when $($text, $argument, [$($value),+])?);
            Call { constant: stringify!($number), number: $number, when, text }
        },)*] }
    };
}

use Value::{Bits, Is, OwnProcess};

/// `CLONE_THREAD` without a new namespace.
const THREAD: Value = Bits(
    (CLONE_THREAD
        | CLONE_NEWNS
        | CLONE_NEWCGROUP
        | CLONE_NEWUTS
        | CLONE_NEWIPC
        | CLONE_NEWUSER
        | CLONE_NEWPID
        | CLONE_NEWNET) as u32 as u64,
    CLONE_THREAD as u64,
);
const NOT_EXECUTABLE: Value = Bits(PROT_EXEC as u64, 0);
const OF_DESCRIPTOR: Value = Bits(AT_EMPTY_PATH as u64, AT_EMPTY_PATH as u64);
/// The C library names its memory.
const SET_VMA: Value = Is(0x5356_4d41);
const BPF_MAP_LOOKUP_ELEM: Value = Is(1);
const BPF_MAP_UPDATE_ELEM: Value = Is(2);
const BPF_MAP_DELETE_ELEM: Value = Is(3);
const BPF_PROG_TEST_RUN: Value = Is(10);
const BPF_LINK_CREATE: Value = Is(28);
/// `_IO('T', 227)`, when the interface is not found any more; it takes `CAP_NET_ADMIN`.
const TUNGETDEVNETNS: Value = Is(0x54e3);
/// `VFIO_TYPE`, of all requests of VFIO and iommufd.
const VFIO: Value = Bits(0xff00, 0x3b00);
/// `VHOST_VIRTIO`, of all requests of vhost.
const VHOST: Value = Bits(0xff00, 0xaf00);
/// The type of all requests of `towpath_bus::platform::abi`.
const PLATFORM: Value = Bits(0xff00, 0xc500);

/// Calls of every datapath.
pub(crate) const BASE: &[Call] = calls! {
    // Descriptors that are open.
    SYS_read,
    SYS_write,
    SYS_readv,
    SYS_writev,
    SYS_close,
    SYS_fcntl,
    SYS_fstat,
    SYS_newfstatat if "of a descriptor": 3 [OF_DESCRIPTOR],
    SYS_statx if "of a descriptor": 2 [OF_DESCRIPTOR],
    SYS_ioctl if "the size and the mode of a terminal, FIONBIO, FIOCLEX": 1
        [Is(TIOCGWINSZ as u32), Is(TCGETS as u32), Is(0x802c_542a), Is(FIONBIO as u32), Is(FIOCLEX as u32)],
    // Waiting.
    #[cfg(target_arch = "x86_64")]
    SYS_poll,
    SYS_ppoll,
    SYS_epoll_create1,
    SYS_epoll_ctl,
    #[cfg(target_arch = "x86_64")]
    SYS_epoll_wait,
    SYS_epoll_pwait,
    SYS_epoll_pwait2,
    SYS_eventfd2,
    SYS_timerfd_create,
    SYS_timerfd_settime,
    SYS_timerfd_gettime,
    SYS_futex,
    SYS_membarrier,
    SYS_restart_syscall,
    // Memory.
    SYS_mmap if "not executable": 2 [NOT_EXECUTABLE],
    SYS_mprotect if "not executable": 2 [NOT_EXECUTABLE],
    SYS_munmap,
    SYS_mremap,
    SYS_madvise,
    SYS_brk,
    // Time.
    SYS_clock_gettime,
    SYS_clock_getres,
    SYS_clock_nanosleep,
    SYS_nanosleep,
    SYS_gettimeofday,
    #[cfg(target_arch = "x86_64")]
    SYS_time,
    // Threads.
    SYS_clone if "a thread, in the same namespaces": 0 [THREAD],
    SYS_set_robust_list,
    SYS_rseq,
    SYS_sched_yield,
    SYS_sched_getaffinity,
    SYS_sched_setaffinity,
    SYS_getcpu,
    SYS_gettid,
    SYS_prctl if "names of threads and of memory": 0 [Is(PR_SET_NAME as u32), SET_VMA],
    SYS_exit,
    SYS_exit_group,
    // Signals.
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_sigaltstack,
    SYS_tgkill if "to this process": 0 [OwnProcess],
    // What the process is.
    SYS_getpid,
    SYS_getuid,
    SYS_geteuid,
    SYS_getgid,
    SYS_getegid,
    SYS_getrandom,
    SYS_getrusage,
    SYS_prlimit64 if "of this process": 0 [Is(0)],
    SYS_sysinfo,
    SYS_uname,
};

/// Calls of a group.
pub(crate) fn of(group: Calls) -> &'static [Call] {
    match group {
        Calls::Sockets => calls! {
            SYS_sendto,
            SYS_recvfrom,
            SYS_sendmsg,
            SYS_recvmsg,
            SYS_sendmmsg,
            SYS_recvmmsg,
            SYS_getsockopt,
            SYS_setsockopt,
            SYS_shutdown,
            SYS_ioctl if "SIOCOUTQ": 1 [Is(TIOCOUTQ as u32)],
        },
        Calls::Accept => calls! {
            SYS_accept4,
            SYS_memfd_create,
            SYS_ftruncate,
            SYS_fallocate,
            SYS_fstatfs,
            SYS_lseek,
            SYS_mincore,
            SYS_socketpair if "AF_UNIX": 0 [Is(AF_UNIX as u32)],
            // A process that shares the memory closes descriptors which others sent: it may block.
            SYS_clone if "CLONE_VM, CLONE_VFORK": 0 [Is((CLONE_VM | CLONE_VFORK) as u32)],
            #[cfg(target_arch = "x86_64")]
            SYS_dup2,
            SYS_dup3,
            SYS_close_range,
            SYS_wait4,
        },
        Calls::Connect => calls! {
            SYS_socket if "AF_UNIX": 0 [Is(AF_UNIX as u32)],
            SYS_connect,
        },
        Calls::Files => calls! {
            SYS_lseek,
            SYS_ftruncate,
        },
        Calls::OpenFiles => calls! {
            SYS_openat,
        },
        Calls::RemoveFiles => calls! {
            #[cfg(target_arch = "x86_64")]
            SYS_unlink,
            SYS_unlinkat,
        },
        Calls::Interface => calls! {
            SYS_ioctl if "SIOCGIFNAME, SIOCGIFFLAGS, SIOCETHTOOL": 1
                [Is(SIOCGIFNAME as u32), Is(SIOCGIFFLAGS as u32), Is(0x8946)],
        },
        Calls::Tun => calls! {
            SYS_ioctl if "TUNGETIFF, TUNSETOFFLOAD, TUNSETSTEERINGEBPF, TUNGETDEVNETNS": 1
                [Is(TUNGETIFF as u32), Is(TUNSETOFFLOAD as u32), Is(TUNSETSTEERINGEBPF as u32), TUNGETDEVNETNS],
        },
        Calls::VhostNet => calls! {
            SYS_ioctl if "of vhost-net": 1 [VHOST],
        },
        Calls::Xdp => calls! {
            SYS_socket if "AF_XDP": 0 [Is(AF_XDP as u32)],
            SYS_bind,
            SYS_bpf if "BPF_MAP_UPDATE_ELEM, BPF_MAP_DELETE_ELEM, BPF_LINK_CREATE": 0
                [BPF_MAP_UPDATE_ELEM, BPF_MAP_DELETE_ELEM, BPF_LINK_CREATE],
        },
        Calls::ProgramRun => calls! {
            SYS_bpf if "BPF_PROG_TEST_RUN, BPF_MAP_LOOKUP_ELEM": 0 [BPF_PROG_TEST_RUN, BPF_MAP_LOOKUP_ELEM],
        },
        Calls::Namespaces => calls! {
            SYS_setns if "network": 1 [Is(CLONE_NEWNET as u32)],
        },
        Calls::Vfio => calls! {
            SYS_ioctl if "of VFIO and iommufd": 1 [VFIO],
            SYS_pread64,
            SYS_pwrite64,
        },
        Calls::Platform => calls! {
            SYS_ioctl if "of the kernel module": 1 [PLATFORM],
        },
        Calls::Aio => calls! {
            SYS_io_submit,
            SYS_io_getevents,
            SYS_io_destroy,
        },
        // A group that is newer than this crate allows nothing more.
        _ => &[],
    }
}

/// The name of a call, if it is one of those above or of those that programs try first.
pub(crate) fn name(number: c_long) -> Option<&'static str> {
    const OTHERS: &[Call] = calls! {
        SYS_clone3,
        SYS_execve,
        SYS_execveat,
        SYS_io_uring_setup,
        SYS_kill,
        SYS_listen,
        SYS_mount,
        #[cfg(target_arch = "x86_64")]
        SYS_open,
        SYS_openat2,
        SYS_perf_event_open,
        SYS_ptrace,
        SYS_process_vm_readv,
        SYS_process_vm_writev,
        #[cfg(target_arch = "x86_64")]
        SYS_readlink,
        SYS_readlinkat,
        SYS_seccomp,
        SYS_socket,
        SYS_unshare,
        SYS_userfaultfd,
        SYS_waitid,
    };
    let groups = Calls::ALL.iter().flat_map(|group| of(*group));
    BASE.iter().chain(groups).chain(OTHERS).find(|call| call.number == number).map(Call::name)
}
