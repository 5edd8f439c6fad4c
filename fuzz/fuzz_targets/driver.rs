//! The fuzzer of `tests/fuzz/src/driver.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidegate_fuzzed::run("driver", data));
