//! CPPI5 host descriptors as the DMA engine reads and writes them.
//!
//! ```text
//!  00 info0 │ info1 │ info2 │ tags     10 next             18 buffer
//!  20 buffer length │ original length  28 original buffer  30 EPIB, 16 B  40 PS words, 16 B
//! ```

use super::dma_view::DmaView;

/// Descriptors start at multiples of this number of bytes.
pub(crate) const SLOT: u64 = 128;
/// The address bits of a pointer, without its tag.
pub(crate) const ADDRESS: u64 = (1 << 48) - 1;
/// Maximum number of descriptors of one packet.
pub(crate) const MAX_CHAIN: usize = 64;

/// The address space tag of a pointer.
pub(crate) fn asel(pointer: u64) -> u8 {
    (pointer >> 48 & 0xf) as u8
}

/// The fetched words of one descriptor: up to 24, in pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Image {
    pub(crate) address: u64,
    words: [u64; 12],
}

impl Image {
    /// Fetches the first `words` words, in whole pairs; `None` if memory is not mapped.
    pub(crate) fn fetch(view: &DmaView<'_>, address: u64, words: u16) -> Option<Image> {
        let mut image = Image { address, words: [0; 12] };
        let pairs = image.words.get_mut(..usize::from(words).div_ceil(2).min(12))?;
        view.load_words(address, pairs).then_some(image)
    }

    /// Writes pairs of words back.
    pub(crate) fn store(&self, view: &DmaView<'_>, pairs: std::ops::Range<usize>) -> bool {
        pairs.into_iter().all(|i| view.store(self.address + 8 * i as u64, self.words[i]))
    }

    fn low(&self, pair: usize) -> u32 {
        self.words[pair] as u32
    }

    fn high(&self, pair: usize) -> u32 {
        (self.words[pair] >> 32) as u32
    }

    pub(crate) fn set(&mut self, pair: usize, low: u32, high: u32) {
        self.words[pair] = u64::from(low) | u64::from(high) << 32;
    }

    pub(crate) fn set_pointer(&mut self, pair: usize, pointer: u64) {
        self.words[pair] = pointer;
    }

    /// 1 host, 2 monolithic, 3 transfer request.
    pub(crate) fn kind(&self) -> u32 {
        self.low(0) >> 30
    }

    pub(crate) fn has_epib(&self) -> bool {
        self.low(0) & 1 << 29 != 0
    }

    /// PS words precede the data, and are not in the descriptor.
    pub(crate) fn ps_in_data(&self) -> bool {
        self.low(0) & 1 << 28 != 0
    }

    /// Number of PS words.
    pub(crate) fn ps_words(&self) -> usize {
        (self.low(0) >> 22 & 0x3f) as usize
    }

    pub(crate) fn packet_len(&self) -> u32 {
        self.low(0) & 0x3f_ffff
    }

    pub(crate) fn return_ring(&self) -> u16 {
        self.low(1) as u16
    }

    pub(crate) fn info2(&self) -> u32 {
        self.low(1)
    }

    pub(crate) fn destination(&self) -> u16 {
        self.high(1) as u16
    }

    pub(crate) fn next(&self) -> u64 {
        self.words[2]
    }

    pub(crate) fn buffer(&self) -> u64 {
        self.words[3]
    }

    pub(crate) fn buffer_len(&self) -> usize {
        (self.low(4) & 0xfff_ffff) as usize
    }

    pub(crate) fn original_len(&self) -> usize {
        (self.high(4) & 0xfff_ffff) as usize
    }

    pub(crate) fn original_buffer(&self) -> u64 {
        self.words[5]
    }

    /// PS word `n` of the descriptor; 0 if it has fewer.
    pub(crate) fn ps(&self, n: usize) -> u32 {
        if self.ps_in_data() || n >= self.ps_words() {
            return 0;
        }
        let at = if self.has_epib() { 16 } else { 12 } + n;
        if at >= 24 { 0 } else { (self.words[at / 2] >> (32 * (at % 2))) as u32 }
    }
}
