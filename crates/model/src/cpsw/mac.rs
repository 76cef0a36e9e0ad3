//! The MAC of one port (`cpsw_sl` in Linux): it passes no frame before it is enabled, while it is
//! commanded idle, or at another speed than its link.
//!
//! ```text
//!   0x330 MACCONTROL   0x334 MACSTATUS   0x338 SOFT_RESET     0x308/0x30c source address
//! ```

const FULL_DUPLEX: u32 = 1 << 0;
const LOOPBACK: u32 = 1 << 1;
const GMII_EN: u32 = 1 << 5;
const GIG: u32 = 1 << 7;
const CMD_IDLE: u32 = 1 << 11;
const EXT_EN: u32 = 1 << 18;
/// MACSTATUS: idle, as a whole and in its parts.
const IDLE: u32 = 0xf << 28;
/// Reads of MACSTATUS until a MAC that was commanded idle is.
const READS_TO_IDLE: u8 = 3;
/// Reads of SOFT_RESET until a reset has ended.
const READS_TO_RESET: u8 = 2;

/// The link of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LinkMode {
    /// Mb/s.
    pub(crate) speed: u32,
    pub(crate) full_duplex: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Mac {
    control: u32,
    /// Reads until the MAC is idle, or its reset has ended.
    busy: u8,
    resetting: u8,
    /// A reset that never ends, for a test.
    pub(crate) hung: bool,
    source: [u32; 2],
}

impl Mac {
    /// Reads a register; `at` is the offset in the port's block.
    pub(crate) fn read(&mut self, at: usize) -> Option<u32> {
        Some(match at {
            0x308 => self.source[0],
            0x30c => self.source[1],
            0x330 => self.control,
            0x334 if self.control & (GMII_EN | CMD_IDLE) == GMII_EN => 0,
            0x334 => {
                self.busy = self.busy.saturating_sub(1);
                if self.busy == 0 { IDLE } else { 0 }
            }
            0x338 => {
                let resetting = u32::from(self.resetting > 0 || self.hung);
                self.resetting = self.resetting.saturating_sub(1);
                resetting
            }
            _ => return None,
        })
    }

    /// Writes a register; false if it is none of the MAC's.
    pub(crate) fn write(&mut self, at: usize, value: u32) -> bool {
        match at {
            0x308 => self.source[0] = value & 0xffff,
            0x30c => self.source[1] = value,
            0x330 => {
                if value & !self.control & CMD_IDLE != 0 && self.control & GMII_EN != 0 {
                    self.busy = READS_TO_IDLE;
                }
                self.control = value;
            }
            0x334 => {}
            0x338 if value & 1 != 0 => *self = Mac { resetting: READS_TO_RESET, hung: self.hung, ..Mac::default() },
            0x338 => {}
            _ => return false,
        }
        true
    }

    /// Whether frames go back to where they came from, without a PHY.
    pub(crate) fn loops_back(&self) -> bool {
        self.runs() && self.control & LOOPBACK != 0
    }

    fn runs(&self) -> bool {
        self.control & GMII_EN != 0 && self.control & CMD_IDLE == 0 && self.resetting == 0
    }

    /// Whether frames pass between the switch and a link.
    pub(crate) fn passes(&self, link: Option<LinkMode>) -> bool {
        let Some(LinkMode { speed, full_duplex }) = link else { return self.loops_back() };
        let speed_is_set = match speed {
            1000 => self.control & GIG != 0,
            // RGMII takes its clock from the PHY at 10 Mb/s only with external control.
            10 => self.control & (GIG | EXT_EN) == EXT_EN,
            _ => self.control & GIG == 0,
        };
        self.runs() && speed_is_set && full_duplex == (self.control & FULL_DUPLEX != 0)
    }

    /// The source address of pause frames.
    pub(crate) fn address(&self) -> [u8; 6] {
        let ([a, b, c, d], [e, f, ..]) = (self.source[1].to_le_bytes(), self.source[0].to_le_bytes());
        [a, b, c, d, e, f]
    }

    /// The control register.
    pub(crate) fn control(&self) -> u32 {
        self.control
    }
}
