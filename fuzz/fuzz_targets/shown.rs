//! The fuzzer of `tests/fuzz/src/shown.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidegate_fuzzed::run("shown", data));
