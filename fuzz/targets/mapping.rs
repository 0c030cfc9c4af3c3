#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| postdate::fuzzing::mapping(data));
