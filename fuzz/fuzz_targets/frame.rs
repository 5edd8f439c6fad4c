//! The fuzzer of `tests/fuzz/src/frame.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidegate_fuzzed::run("frame", data));
