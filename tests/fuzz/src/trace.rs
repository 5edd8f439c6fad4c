//! A trace from anywhere: reading must not panic, and what decodes must encode to itself.
//!
//! The checksums are made right first, or the fuzzer would never get past them.

use tidegate_trace::format::{BLOCK_LEN, Block, checksum};
use tidegate_trace::{Merged, Reader, summarise};

pub(super) fn run(data: &[u8]) {
    let mut bytes = data.to_vec();
    for block in bytes.as_chunks_mut::<BLOCK_LEN>().0 {
        let sum = checksum(block);
        block[BLOCK_LEN - 4..].copy_from_slice(&sum.to_le_bytes());
        if let Ok(decoded) = Block::decode(block) {
            assert_eq!(decoded.encode(), *block);
        }
    }
    if let Ok(reader) = Reader::new(&bytes[..], "fuzz") {
        let mut merged = Merged::new(vec![reader]);
        summarise(&mut merged).expect("memory is readable");
    }
}
