//! Faults that a driver survives: each has a name, and is counted.

/// Declares a driver's faults, as `Kind = counter,` lines: the enumeration `Fault`, the snapshot
/// `Faults`, and the counters, `FaultCounts`.
macro_rules! faults {
    ($($(#[$doc:meta])* $variant:ident = $field:ident,)*) => {
        /// A fault that the driver survives.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub(super) enum Fault { $($(#[$doc])* $variant,)* }

        /// How often each fault has happened since the port was started.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[non_exhaustive]
        pub struct Faults { $($(#[$doc])* pub $field: u64,)* }

        impl Faults {
            /// Names and counts, in a fixed order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), self.$field)),*].into_iter()
            }
        }

        /// The counters of the faults. Relaxed: a count orders nothing.
        #[derive(Debug, Default)]
        struct FaultCounts([std::sync::atomic::AtomicU64; [$(Fault::$variant),*].len()]);

        impl FaultCounts {
            #[cold]
            fn add(&self, fault: Fault) {
                if let Some(count) = self.0.get(fault as usize) {
                    count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
            }

            fn read(&self) -> Faults {
                let count = |fault| self.0.get(fault as usize).map_or(0, |n| n.load(std::sync::atomic::Ordering::Relaxed));
                Faults { $($field: count(Fault::$variant),)* }
            }
        }
    };
}

pub(crate) use faults;
