//! Bytes from a hostile peer: decoding must not panic, and what decodes must encode to itself.
//!
//! The checksums are made right first, or the fuzzer would never get past them.

use tidegate_wire::PAYLOAD_LIMIT;
use tidegate_wire::frame::{
    HEADER_LEN, checksum, decode_header, decode_reply, decode_request_shared, encode_reply,
    encode_reply_shared, encode_request, encode_request_shared,
};

pub(super) fn run(data: &[u8]) {
    let mut bytes = data.to_vec();
    let Some((head, body)) = bytes.split_first_chunk_mut::<HEADER_LEN>() else {
        return;
    };
    head[20..24].copy_from_slice(&(body.len() as u32).to_le_bytes());
    head[56..60].copy_from_slice(&checksum(body).to_le_bytes());
    let sum = checksum(&head[..60]);
    head[60..64].copy_from_slice(&sum.to_le_bytes());
    let Ok(header) = decode_header(head, PAYLOAD_LIMIT) else {
        return;
    };
    let mut again = Vec::new();
    if let Ok((request, place)) = decode_request_shared(&header, body) {
        match place {
            Some(place) => encode_request_shared(&request, place, &mut again),
            None => encode_request(&request, &mut again),
        }
        assert_eq!(again, bytes);
    } else if let Ok(reply) = decode_reply(&header, body) {
        match header.shared {
            true => encode_reply_shared(header.op(), &reply, &mut again),
            false => encode_reply(header.op(), &reply, &mut again),
        }
        assert_eq!(again, bytes);
    }
}
