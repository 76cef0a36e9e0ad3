//! The PHY of the chip (82574 §8, "BM", identifier 0x01410cb1), and the way to it: MDIC, under the
//! semaphore that the driver shares with management firmware.
//!
//! | when | what |
//! |---|---|
//! | start, and after every reset | [`bring_up`]: power, settings, advertisement, negotiation |
//! | the link has come up | [`settle`]: the pause frames on which both ends agreed |
//! | now and then, 82574 only | [`Watch::is_stuck`]: an erratum |
//! | stop | [`shut_down`]: no power, so that the partner sees no link to a dead port |
//!
//! If firmware has blocked resets of the PHY (MANC), the link is firmware's: the driver leaves PHY
//! and flow control alone. Order and values are those of Linux's driver (`drivers/net/ethernet/
//! intel/e1000e/{phy,82571,mac}.c`), where the datasheet is silent.

use super::config::{Config, MS};
use super::regs::*;
use crate::common::phy::{self, FlowControl, Mdio, MdioError};
use std::time::Duration;
use towpath_bus::Mmio;

/// Identifier of the PHY in the 82574 and 82583.
const BM: u32 = 0x0141_0cb1;
/// Receives the page of registers 16 to 31. All that the driver uses lie in page 0.
const PAGE: u8 = 22;
/// PHY-specific control: crossover, polarity, downshift (the speed is lowered if it does not work).
const CONTROL: u8 = 16;
const CROSSOVER_AUTO: u16 = 3 << 5;
const POLARITY_FIXED: u16 = 1 << 1;
const DOWNSHIFT: u16 = 1 << 11;
/// PHY-specific status: the speed was lowered, by a bad cable.
const STATUS_SPECIFIC: u8 = 17;
const DOWNSHIFTED: u16 = 1 << 5;
const STATUS_1000: u8 = 10;
const RECEIVE_ERRORS: u8 = 21;
/// Smart power down, which delays the link.
const POWER: u8 = 25;
const SMART_POWER_DOWN: u16 = 1 << 0;
/// A window to internal settings.
const WINDOW: [(u8, u16); 2] = [(29, 0x0003), (30, 0x0000)];

/// The longest time of a transaction. Shorter limits have failed in the field (Linux:
/// `e1000e_read_phy_reg_mdic`).
const TRANSACTION: Duration = Duration::from_millis(96);
/// Attempts to get the semaphore, 2 ms apart.
const ATTEMPTS: u32 = 10;

/// PHY and NVM, as long as the driver holds their semaphore (§4.6.1).
pub(super) struct Mdic<'a, M: Mmio> {
    bar: &'a M,
    config: &'a Config,
    /// Page 0 is selected.
    paged: bool,
}

impl<'a, M: Mmio> Mdic<'a, M> {
    /// Takes the semaphore if it is free. The bit stays set only if firmware grants it.
    pub(super) fn try_acquire(bar: &'a M, config: &'a Config) -> Result<Mdic<'a, M>, MdioError> {
        EXTCNF_CTRL.change(bar, 0, EXTCNF_SOFTWARE);
        // From here on the request is withdrawn by the drop.
        let mdic = Mdic { bar, config, paged: false };
        let granted = EXTCNF_CTRL.read(bar) & EXTCNF_SOFTWARE != 0;
        if granted { Ok(mdic) } else { Err(MdioError::Held) }
    }

    /// Takes the semaphore, and waits for it if firmware holds it.
    pub(super) fn acquire(bar: &'a M, config: &'a Config) -> Result<Mdic<'a, M>, MdioError> {
        for _ in 1..ATTEMPTS {
            if let Ok(mdic) = Mdic::try_acquire(bar, config) {
                return Ok(mdic);
            }
            config.pauses.wait(2 * MS);
        }
        Mdic::try_acquire(bar, config)
    }

    fn transaction(&mut self, operation: u32, register: u8, value: u16) -> Result<u16, MdioError> {
        let place = u32::from(register) << mdic::REGISTER_SHIFT;
        MDIC.write(self.bar, operation | mdic::PHY | place | u32::from(value));
        self.config.pauses.wait(Duration::from_micros(50));
        let word = MDIC.wait(self.bar, mdic::READY, mdic::READY, TRANSACTION).map_err(|_| MdioError::Silent)?;
        let good = word != u32::MAX && word & mdic::ERROR == 0 && word & mdic::REGISTER == place;
        if good { Ok(word as u16) } else { Err(MdioError::Silent) }
    }

    /// Selects page 0 for registers above 15.
    fn select(&mut self, register: u8) -> Result<(), MdioError> {
        if register > 15 && register != PAGE && !self.paged {
            self.transaction(mdic::WRITE, PAGE, 0)?;
            self.paged = true;
        }
        Ok(())
    }

    /// A word of the NVM (§10.2.2.4); `None` if it can't be read.
    fn nvm(&self, word: u32) -> Option<u16> {
        EERD.write(self.bar, word << eerd::ADDRESS_SHIFT | eerd::START);
        let read = EERD.wait(self.bar, eerd::DONE, eerd::DONE, 10 * MS).ok()?;
        Some((read >> eerd::DATA_SHIFT) as u16)
    }
}

impl<M: Mmio> Mdio for Mdic<'_, M> {
    fn read(&mut self, register: u8) -> Result<u16, MdioError> {
        self.select(register)?;
        self.transaction(mdic::READ, register, 0)
    }

    fn write(&mut self, register: u8, value: u16) -> Result<(), MdioError> {
        self.select(register)?;
        self.transaction(mdic::WRITE, register, value).map(drop)
    }
}

impl<M: Mmio> Drop for Mdic<'_, M> {
    fn drop(&mut self) {
        EXTCNF_CTRL.change(self.bar, EXTCNF_SOFTWARE, 0);
    }
}

/// Whether the link belongs to firmware, which has blocked resets of the PHY.
pub(super) fn is_firmwares<M: Mmio>(bar: &M) -> bool {
    MANC.read(bar) & MANC_BLOCK_PHY_RESET != 0
}

/// Powers the PHY up and starts the negotiation. A PHY that does not answer is reset first.
///
/// # Errors
/// Firmware holds the PHY, or it does not answer after a reset either.
pub(super) fn bring_up<M: Mmio>(bar: &M, config: &Config) -> Result<(), MdioError> {
    if is_firmwares(bar) {
        return Ok(());
    }
    let mut mdic = Mdic::acquire(bar, config)?;
    let identifier = match phy::identifier(&mut mdic) {
        Err(MdioError::Silent) => {
            hard_reset(bar, config);
            phy::identifier(&mut mdic)?
        }
        other => other?,
    };
    phy::power_up(&mut mdic)?;
    if identifier == BM {
        set_up(&mut mdic)?;
    }
    phy::advertise(&mut mdic, config.flow_control)?;
    // "Low power link up" would prefer 10 and 100 Mb/s.
    POEMB.change(bar, POEMB_LOW_POWER_D0, 0);
    phy::restart(&mut mdic)
}

/// The settings of this PHY. Each soft reset lets those before it take effect.
fn set_up<M: Mmio>(mdic: &mut Mdic<'_, M>) -> Result<(), MdioError> {
    // Downshift works only if it was off before it is on (Linux: `e1000e_copper_link_setup_m88`).
    mdic.change(CONTROL, POLARITY_FIXED | DOWNSHIFT, CROSSOVER_AUTO)?;
    soft_reset(mdic)?;
    mdic.change(CONTROL, 0, DOWNSHIFT)?;
    for (register, value) in WINDOW {
        mdic.write(register, value)?;
    }
    mdic.change(POWER, SMART_POWER_DOWN, 0)?;
    soft_reset(mdic)
}

fn soft_reset<M: Mmio>(mdic: &mut Mdic<'_, M>) -> Result<(), MdioError> {
    phy::soft_reset(mdic)?;
    mdic.config.pauses.wait(Duration::from_micros(1));
    Ok(())
}

/// Resets the PHY by its wire (§10.2.2.1; the times are Linux's).
fn hard_reset<M: Mmio>(bar: &M, config: &Config) {
    CTRL.change(bar, ctrl::RESERVED, ctrl::PHY_RESET);
    config.pauses.wait(Duration::from_micros(100));
    CTRL.change(bar, ctrl::RESERVED | ctrl::PHY_RESET, 0);
    config.pauses.wait(10 * MS);
}

/// What was found when the link came up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Settled {
    /// The link is not to be settled now; the caller tries again.
    NotYet,
    /// The MAC follows what both ends agreed on.
    Yes {
        /// The speed was lowered, by a bad cable.
        downshifted: bool,
    },
}

/// Lets the MAC follow what both ends agreed on: pause frames, in full duplex only (§4.6.5.1). To
/// be called once after the link has come up.
///
/// # Errors
/// The PHY does not answer.
pub(super) fn settle<M: Mmio>(bar: &M, config: &Config, full_duplex: bool) -> Result<Settled, MdioError> {
    if is_firmwares(bar) {
        return Ok(Settled::Yes { downshifted: false });
    }
    let Ok(mut mdic) = Mdic::try_acquire(bar, config) else { return Ok(Settled::NotYet) };
    let Some(agreed) = phy::pause(&mut mdic, config.flow_control)? else { return Ok(Settled::NotYet) };
    let bit = |on: bool, bit| if on && full_duplex { bit } else { 0 };
    let pauses = bit(agreed.rx, ctrl::RX_PAUSE) | bit(agreed.tx, ctrl::TX_PAUSE);
    CTRL.change(bar, ctrl::RESERVED | ctrl::RX_PAUSE | ctrl::TX_PAUSE, pauses);
    Ok(Settled::Yes { downshifted: mdic.read(STATUS_SPECIFIC)? & DOWNSHIFTED != 0 })
}

/// Switches the PHY off, unless firmware uses the link: it says so in MANC, or in word 0x0f of the
/// NVM.
pub(super) fn shut_down<M: Mmio>(bar: &M, config: &Config) {
    const MANAGEABILITY: (u32, u16) = (0x0f, 0x6000);
    if is_firmwares(bar) {
        return;
    }
    let Ok(mut mdic) = Mdic::acquire(bar, config) else { return };
    if mdic.nvm(MANAGEABILITY.0).is_some_and(|word| word & MANAGEABILITY.1 == 0) {
        // A PHY that does not answer has no link to give up.
        let _ = phy::power_down(&mut mdic);
    }
}

/// The thresholds of the packet buffer at which the device asks for a pause, and at which it ends
/// it (FCRTH, FCRTL), for `room` bytes of packet buffer (Linux: `e1000e_reset`). Both are zero if
/// the port never asks.
pub(super) fn thresholds(config: &Config, room: u32) -> (u32, u32) {
    if !matches!(config.flow_control, FlowControl::Tx | FlowControl::Full) {
        return (0, 0);
    }
    let frame = u32::from(config.mtu) + 22;
    let high = (room * 9 / 10).min(room.saturating_sub(frame)) & !7;
    (high, (high - 8) | FCRTL_ENABLE)
}

/// Finds a PHY that hangs: it counts errors and receives nothing, until the device is reset. Both
/// of its registers are full, twice in a row (an erratum of the 82574, Linux:
/// `e1000_check_phy_82574`).
#[derive(Debug, Default)]
pub(super) struct Watch {
    calls: u32,
    suspected: bool,
}

impl Watch {
    /// Reads the PHY in every tenth call; returns whether it hangs.
    pub(super) fn is_stuck<M: Mmio>(&mut self, bar: &M, config: &Config) -> bool {
        self.calls += 1;
        if self.calls < 10 {
            return false;
        }
        self.calls = 0;
        let full = Mdic::try_acquire(bar, config).is_ok_and(|mut mdic| {
            mdic.read(RECEIVE_ERRORS) == Ok(0xffff) && mdic.read(STATUS_1000).is_ok_and(|word| word & 0xff == 0xff)
        });
        std::mem::replace(&mut self.suspected, full) && full
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thresholds_are_those_of_linux() {
        let of =
            |mtu, room: u32, flow_control| thresholds(&Config { mtu, flow_control, ..Config::default() }, room << 10);
        assert_eq!(of(1500, 32, FlowControl::Full), (0x7330, 0x7328 | 1 << 31));
        assert_eq!(of(9000, 22, FlowControl::Tx), (0x34c0, 0x34b8 | 1 << 31));
        assert_eq!(of(1500, 32, FlowControl::Rx), (0, 0));
        assert_eq!(of(1500, 32, FlowControl::Off), (0, 0));
    }
}
