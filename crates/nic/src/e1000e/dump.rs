//! The registers for a report: those that reading does not change, and the PHY's.
//!
//! Left out are ICR and the statistics, which reading clears, and SWSM, which reading locks.

use super::config::Config;
use super::phy::Mdic;
use super::regs::*;
use crate::common::phy::Mdio;
use towpath_bus::{Mmio, Reg};

const MAC: [(&str, Reg); 43] = [
    ("CTRL", CTRL),
    ("STATUS", STATUS),
    ("EECD", EECD),
    ("CTRL_EXT", CTRL_EXT),
    ("EXTCNF_CTRL", EXTCNF_CTRL),
    ("POEMB", POEMB),
    ("IMS", IMS),
    ("EIAC", EIAC),
    ("IVAR", IVAR),
    ("RCTL", RCTL),
    ("RFCTL", RFCTL),
    ("RXCSUM", RXCSUM),
    ("MRQC", MRQC),
    ("PBA", PBA),
    ("FCRTL", FCRTL),
    ("FCRTH", FCRTH),
    ("FCTTV", FCTTV),
    ("VET", VET),
    ("RDLEN0", RDLEN),
    ("RDH0", RDH),
    ("RDT0", RDT),
    ("RXDCTL0", RXDCTL),
    ("RDH1", RDH.nth(1, QUEUE)),
    ("RDT1", RDT.nth(1, QUEUE)),
    ("TCTL", TCTL),
    ("TIPG", TIPG),
    ("TDLEN0", TDLEN),
    ("TDH0", TDH),
    ("TDT0", TDT),
    ("TXDCTL0", TXDCTL),
    ("TDH1", TDH.nth(1, QUEUE)),
    ("TDT1", TDT.nth(1, QUEUE)),
    ("TXDCTL1", TXDCTL.nth(1, QUEUE)),
    ("TARC0", TARC),
    ("TARC1", TARC.nth(1, QUEUE)),
    ("RAL0", RAL),
    ("RAH0", RAH),
    ("WUC", Reg(0x5800)),
    ("WUFC", Reg(0x5808)),
    ("MANC", MANC),
    ("FACTPS", Reg(0x5b30)),
    ("GCR", GCR),
    ("GCR2", GCR2),
];

/// IEEE 802.3 §22.2.4, and registers of this PHY (Linux: `phy.h`, `M88E1000_*`, `BM_*`). Register
/// 21 is left out: it counts.
const PHY: [(&str, u8); 15] = [
    ("PHY 0 control", 0),
    ("PHY 1 status", 1),
    ("PHY 2 identifier", 2),
    ("PHY 3 identifier", 3),
    ("PHY 4 advertised", 4),
    ("PHY 5 partner", 5),
    ("PHY 6 expansion", 6),
    ("PHY 9 1000 control", 9),
    ("PHY 10 1000 status", 10),
    ("PHY 15 extended status", 15),
    ("PHY 16 specific control", 16),
    ("PHY 17 specific status", 17),
    ("PHY 20 extended control", 20),
    ("PHY 25 power", 25),
    ("PHY 26 specific", 26),
];

/// The registers of a device that its driver, if one runs, does not use the PHY of meanwhile. The
/// PHY's are missing if firmware holds it, or it does not answer.
pub fn registers<M: Mmio>(bar: &M) -> Vec<(&'static str, u64)> {
    let mut found: Vec<_> = MAC.iter().map(|(name, register)| (*name, u64::from(register.read(bar)))).collect();
    let config = Config::default();
    if STATUS.read(bar) != u32::MAX
        && let Ok(mut mdic) = Mdic::acquire(bar, &config)
    {
        let phy = PHY.iter().map_while(|(name, register)| Some((*name, u64::from(mdic.read(*register).ok()?))));
        found.extend(phy);
    }
    found
}
