//! The fuzzer of `tests/fuzz/src/states.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidegate_fuzzed::run("states", data));
