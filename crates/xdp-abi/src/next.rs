//! The next definition of a function that this library interposes: that of the C library, libxdp or
//! libbpf, or of another library in front of it.

use libc::{c_int, c_void};
use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The next definition of one function. Without a lock: `poll` may be called in a signal handler.
pub(crate) struct Next {
    name: &'static CStr,
    at: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn of(name: &'static CStr) -> Next {
        Next { name, at: AtomicPtr::new(null_mut()) }
    }

    /// The address of the function; null if there is none.
    pub(crate) fn get(&self) -> *mut c_void {
        // Relaxed: the loader made the code visible, and every search finds the same.
        let known = self.at.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name is a string with a terminating zero.
        let at = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.at.store(at, Ordering::Relaxed);
        at
    }
}

/// The next definition of a function as an `Option` of its type.
macro_rules! next {
    ($name:literal as $type:ty) => {{
        static NEXT: $crate::next::Next = $crate::next::Next::of($name);
        // SAFETY: null is `None`, and a function of this name has this type by its header.
        unsafe { std::mem::transmute::<*mut libc::c_void, Option<$type>>(NEXT.get()) }
    }};
}
pub(crate) use next;

/// The C library's error number of this thread.
pub(crate) fn errno() -> c_int {
    // SAFETY: the address is that of this thread's number.
    unsafe { *libc::__errno_location() }
}

/// Sets the C library's error number of this thread.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}
