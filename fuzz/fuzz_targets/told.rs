//! The fuzzer of `tests/fuzz/src/told.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidegate_fuzzed::run("told", data));
