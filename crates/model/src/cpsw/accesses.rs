//! Counts of register accesses to a ring.

/// Register accesses of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Accesses {
    /// Doorbells written.
    pub doorbells: u64,
    /// Occupancies read.
    pub occupancies: u64,
    /// Elements written through the FIFO window.
    pub fifo_writes: u64,
    /// Elements read through the FIFO window.
    pub fifo_reads: u64,
}

impl Accesses {
    /// All accesses.
    pub fn total(&self) -> u64 {
        self.doorbells + self.occupancies + self.fifo_writes + self.fifo_reads
    }
}

impl std::ops::Sub for Accesses {
    type Output = Accesses;

    fn sub(self, earlier: Accesses) -> Accesses {
        Accesses {
            doorbells: self.doorbells - earlier.doorbells,
            occupancies: self.occupancies - earlier.occupancies,
            fifo_writes: self.fifo_writes - earlier.fifo_writes,
            fifo_reads: self.fifo_reads - earlier.fifo_reads,
        }
    }
}

impl std::ops::Add for Accesses {
    type Output = Accesses;

    fn add(self, other: Accesses) -> Accesses {
        Accesses {
            doorbells: self.doorbells + other.doorbells,
            occupancies: self.occupancies + other.occupancies,
            fifo_writes: self.fifo_writes + other.fifo_writes,
            fifo_reads: self.fifo_reads + other.fifo_reads,
        }
    }
}
