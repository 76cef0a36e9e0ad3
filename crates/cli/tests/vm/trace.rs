//! Writes to the registers of the NIC, from QEMU's trace events, by the names of the datasheet.
//!
//! Names and offsets are those of the datasheet (82574 chapter 10) and of Linux's `regs.h`; none is
//! taken from the driver under test.

use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

/// A write to a register.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Access {
    /// Without an index for arrays.
    pub(crate) register: String,
    /// The place in an array.
    pub(crate) index: u32,
    pub(crate) value: u32,
}

/// QEMU's log.
pub(crate) struct Trace {
    path: PathBuf,
    read: u64,
}

impl Trace {
    pub(crate) fn new(path: PathBuf) -> Trace {
        Trace { path, read: 0 }
    }

    /// The writes that were logged since the last call.
    pub(crate) fn next(&mut self) -> Vec<Access> {
        let mut text = String::new();
        if let Ok(mut file) = std::fs::File::open(&self.path) {
            let read = file.seek(SeekFrom::Start(self.read)).and_then(|_| file.read_to_string(&mut text));
            read.unwrap_or_else(|e| panic!("{}: {e}", self.path.display()));
        }
        // The last line may still be written.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        self.read += whole as u64;
        text[..whole].lines().filter_map(parse).collect()
    }
}

/// `e1000e_core_write Write to register 0x100, 4 byte(s), value: 0x2`; some builds put a prefix
/// before it.
fn parse(line: &str) -> Option<Access> {
    let (_, rest) = line.split_once("e1000e_core_write ")?;
    let number = |key: &str| {
        let text = rest.split_once(key)?.1;
        let digits = text.split(|c: char| !c.is_ascii_hexdigit()).next()?;
        u32::from_str_radix(digits, 16).ok()
    };
    named(number("register 0x")?, number("value: 0x")?)
}

/// Registers, and arrays with their number of entries and the distance between them.
#[rustfmt::skip]
const NAMES: &[(u32, &str, u32, u32)] = &[
    (0x0000, "CTRL", 1, 4), (0x0008, "STATUS", 1, 4), (0x0010, "EECD", 1, 4), (0x0018, "CTRL_EXT", 1, 4),
    (0x0028, "FCAL", 1, 4), (0x002c, "FCAH", 1, 4), (0x0030, "FCT", 1, 4), (0x0038, "VET", 1, 4),
    (0x00c0, "ICR", 1, 4), (0x00c4, "ITR", 1, 4), (0x00c8, "ICS", 1, 4), (0x00d0, "IMS", 1, 4), (0x00d8, "IMC", 1, 4),
    (0x00dc, "EIAC", 1, 4), (0x00e0, "IAM", 1, 4), (0x00e4, "IVAR", 1, 4), (0x00e8, "EITR", 5, 4),
    (0x0100, "RCTL", 1, 4), (0x0170, "FCTTV", 1, 4), (0x0400, "TCTL", 1, 4), (0x0404, "TCTL_EXT", 1, 4),
    (0x0410, "TIPG", 1, 4), (0x0458, "AIT", 1, 4), (0x0f00, "EXTCNF_CTRL", 1, 4), (0x0f10, "POEMB", 1, 4),
    (0x1000, "PBA", 1, 4), (0x2160, "FCRTL", 1, 4), (0x2168, "FCRTH", 1, 4), (0x2170, "PSRCTL", 1, 4),
    (0x2800, "RDBAL0", 1, 4), (0x2804, "RDBAH0", 1, 4), (0x2808, "RDLEN0", 1, 4), (0x2810, "RDH0", 1, 4),
    (0x2818, "RDT0", 1, 4), (0x2820, "RDTR", 1, 4), (0x2828, "RXDCTL0", 1, 4), (0x282c, "RADV", 1, 4),
    (0x2900, "RDBAL1", 1, 4), (0x2904, "RDBAH1", 1, 4), (0x2908, "RDLEN1", 1, 4), (0x2910, "RDH1", 1, 4),
    (0x2918, "RDT1", 1, 4), (0x2928, "RXDCTL1", 1, 4),
    (0x3800, "TDBAL0", 1, 4), (0x3804, "TDBAH0", 1, 4), (0x3808, "TDLEN0", 1, 4), (0x3810, "TDH0", 1, 4),
    (0x3818, "TDT0", 1, 4), (0x3820, "TIDV", 1, 4), (0x3828, "TXDCTL0", 1, 4), (0x382c, "TADV", 1, 4),
    (0x3840, "TARC0", 1, 4), (0x3910, "TDH1", 1, 4), (0x3918, "TDT1", 1, 4), (0x3928, "TXDCTL1", 1, 4),
    (0x3940, "TARC1", 1, 4), (0x5000, "RXCSUM", 1, 4), (0x5008, "RFCTL", 1, 4), (0x5200, "MTA", 128, 4),
    (0x5400, "RAL0", 1, 4), (0x5404, "RAH0", 1, 4), (0x5408, "RAL1..15", 15, 8), (0x540c, "RAH1..15", 15, 8),
    (0x5600, "VFTA", 128, 4), (0x5800, "WUC", 1, 4), (0x5808, "WUFC", 1, 4), (0x5818, "MRQC", 1, 4),
    (0x5820, "MANC", 1, 4), (0x5b00, "GCR", 1, 4), (0x5b50, "SWSM", 1, 4), (0x5b64, "GCR2", 1, 4),
    (0x5c00, "RETA", 32, 4), (0x5c80, "RSSRK", 10, 4),
    (0xb608, "TIMINCA", 1, 4), (0xb614, "TSYNCTXCTL", 1, 4), (0xb620, "TSYNCRXCTL", 1, 4),
    (0xb634, "RXMTRL", 1, 4), (0xb638, "RXUDP", 1, 4),
];

/// The write by name. Accesses to the PHY by MDIC are writes to `PHYn`. Requests to read the NVM or
/// the PHY, and the selection of page 0 of the PHY, change nothing and are left out.
fn named(offset: u32, value: u32) -> Option<Access> {
    const MDIC: u32 = 0x20;
    const EERD: u32 = 0x14;
    let access = |register: &str, index, value| Some(Access { register: register.to_owned(), index, value });
    match offset {
        EERD => None,
        MDIC => {
            let (phy, is_write) = (value >> 16 & 31, value >> 26 & 3 == 1);
            let selects_page = phy == 22 && value & 0xffff == 0;
            (is_write && !selects_page).then(|| access(&format!("PHY{phy}"), 0, value & 0xffff))?
        }
        _ => {
            let found = NAMES.iter().find_map(|&(first, name, entries, stride)| {
                let index = offset.checked_sub(first)? / stride;
                (index < entries && (offset - first).is_multiple_of(stride)).then_some((name, index))
            });
            found
                .map_or_else(|| access(&format!("{offset:#06x}"), 0, value), |(name, index)| access(name, index, value))
        }
    }
}

/// The last value of each register.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Registers(BTreeMap<String, BTreeMap<u32, u32>>);

impl Registers {
    /// Notes a write. Registers whose bits are set or cleared one by one keep all bits that were
    /// ever written; the order to flush partial blocks of descriptors is no setting.
    pub(crate) fn write(&mut self, access: &Access) {
        const FLUSH_PARTIAL: u32 = 1 << 31;
        let entries = self.0.entry(access.register.clone()).or_default();
        let before = entries.get(&access.index).copied();
        let value = match access.register.as_str() {
            "IMS" | "IMC" => before.unwrap_or(0) | access.value,
            "RDTR" | "TIDV" => access.value & !FLUSH_PARTIAL,
            _ => access.value,
        };
        entries.insert(access.index, value);
    }

    /// The names of all registers that were written.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// A register's value as it stands in the tables; `None` if what differs is no setting: it
    /// depends on memory or traffic, or is random.
    pub(crate) fn value(&self, register: &str) -> Option<String> {
        let random = ["RDBAL", "RDBAH", "TDBAL", "TDBAH", "RDT", "TDT", "RSSRK", "EITR", "ICR", "ICS"];
        if random.iter().any(|prefix| register.starts_with(prefix) && register != "RDTR") {
            return None;
        }
        let Some(entries) = self.0.get(register) else { return Some("-".to_owned()) };
        if entries.len() == 1 && entries.contains_key(&0) {
            return Some(format!("{:#x}", entries[&0]));
        }
        let set = entries.iter().filter(|&(_, &value)| value != 0);
        let set: Vec<_> = set.map(|(index, value)| format!("[{index}]={value:#x}")).collect();
        Some(if set.is_empty() { "all 0".to_owned() } else { set.join(" ") })
    }
}
