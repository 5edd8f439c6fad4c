//! Makes choices of bytes: a fuzzer that changes a byte changes one choice.

/// Bytes that are taken from the front. Where none are left, every number is 0 and every text is
/// empty, so each input is a complete one.
pub struct Draw<'a> {
    left: &'a [u8],
}

impl<'a> Draw<'a> {
    /// Choices that these bytes make.
    pub fn new(bytes: &'a [u8]) -> Draw<'a> {
        Draw { left: bytes }
    }

    /// Whether no bytes are left.
    pub fn is_over(&self) -> bool {
        self.left.is_empty()
    }

    /// All bytes that are left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.left)
    }

    /// So many bytes, or what is left.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, left) = self.left.split_at(len.min(self.left.len()));
        self.left = left;
        taken
    }

    /// Up to 255 bytes, whose number comes first.
    pub fn some_bytes(&mut self) -> &'a [u8] {
        let len = self.u8();
        self.bytes(len.into())
    }

    /// A number of one byte.
    pub fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    /// A number of two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// A number of four bytes.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// A number of eight bytes.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// A number that is small, or near a power of two or the end of its range: where sums overflow.
    pub fn size(&mut self) -> u64 {
        let (shape, more) = (self.u8(), u64::from(self.u8()));
        match shape >> 6 {
            0 => more,
            1 => more << (shape & 63),
            2 => (1_u64 << (shape & 63)).wrapping_sub(more),
            _ => self.u64(),
        }
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        let number = match bound {
            0..=0x100 => usize::from(self.u8()),
            _ => usize::from(self.u16()),
        };
        number % bound
    }

    /// Heads or tails.
    pub fn yes(&mut self) -> bool {
        self.u8() & 1 == 1
    }

    /// One time of so many.
    pub fn one_in(&mut self, times: u8) -> bool {
        self.u8() % times == times - 1
    }

    /// One of these.
    pub fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let taken = self.bytes(N);
        array[..taken.len()].copy_from_slice(taken);
        array
    }
}
