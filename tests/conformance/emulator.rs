//! What the emulator alone does.

use std::process::Command;

use anyhow::ensure;
use metrale_gpu_sys::{BINDING, nccl};

use crate::calls::*;
use crate::cases::{CHILD, Cases};
use crate::expect;
use crate::world::{ANY, EMULATOR};

pub fn add(cases: &mut Cases) {
    cases.subject("emulator");
    cases.bare("binding", ANY, || {
        let expected = if cfg!(feature = "emulator") {
            "Emulated"
        } else if cfg!(feature = "dlopen") {
            "Dlopen"
        } else {
            "Linked"
        };
        expect!(format!("{BINDING:?}"), expected);
        Ok(())
    });
    cases.bare("version", EMULATOR, || {
        let mut version = 0;
        expect!(ncclGetVersion(&mut version), nccl::NcclResult::Success);
        expect!(version, nccl::NCCL_VERSION_CODE);
        Ok(())
    });
    for (devices, expected) in [("1", 1), ("3", 3), ("16", 16)] {
        let variables: &[_] = match devices {
            "1" => &[("METRALE_EMULATOR_DEVICES", Some("1"))],
            "3" => &[("METRALE_EMULATOR_DEVICES", Some("3"))],
            _ => &[("METRALE_EMULATOR_DEVICES", Some("16"))],
        };
        cases.child(
            &format!("devices_{devices}"),
            EMULATOR,
            variables,
            move || {
                init()?;
                expect!(device_count()?, expected);
                use_device(expected - 1)?;
                expect!(cuDeviceGet(&mut 0, expected), CuResult::InvalidDevice);
                Ok(())
            },
        );
    }
    cases.child(
        "devices_by_default",
        EMULATOR,
        &[("METRALE_EMULATOR_DEVICES", None)],
        || {
            init()?;
            expect!(device_count()?, 8);
            Ok(())
        },
    );
    // The process of this name makes a few calls; what it prints is looked at here.
    cases.child("quiet_part", EMULATOR, &[], || {
        use_device(0)?;
        destroy_stream(create_stream()?);
        let mut version = 0;
        expect!(ncclGetVersion(&mut version), nccl::NcclResult::Success);
        Ok(())
    });
    cases.bare("announces_itself_once_on_standard_error", EMULATOR, || {
        let output = Command::new(std::env::current_exe()?)
            .args([CHILD, "emulator::quiet_part"])
            .output()?;
        ensure!(output.status.success() && output.stdout.is_empty());
        let text = String::from_utf8(output.stderr)?;
        let lines: Vec<&str> = text.lines().collect();
        ensure!(lines.len() == 1 && lines[0].contains("emulat"), "{text}");
        Ok(())
    });
    cases.solo("kernels_are_rust_functions", EMULATOR, || {
        #[cfg(feature = "emulator")]
        kernels()?;
        Ok(())
    });
    cases.solo("nothing_of_nvidia_is_mapped", EMULATOR, || {
        let maps = std::fs::read_to_string("/proc/self/maps")?;
        ensure!(!maps.contains("libcuda") && !maps.contains("libnccl"));
        Ok(())
    });
}

/// A kernel of the user's, in the place of the device's code.
#[cfg(feature = "emulator")]
fn kernels() -> anyhow::Result<()> {
    metrale_gpu_sys::emulator::register_kernel("add", &[8, 4, 4], |launch| {
        // SAFETY: as registered, and as the launch below passes them.
        let (data, count, addend) = unsafe {
            (
                launch.parameter::<u64>(0),
                launch.parameter::<u32>(1),
                launch.parameter::<u32>(2),
            )
        };
        // SAFETY: the buffer holds as many words, and the stream does nothing else meanwhile.
        let words = unsafe { std::slice::from_raw_parts_mut(data as *mut u32, count as usize) };
        words.iter_mut().for_each(|word| *word += addend);
    });
    let (mut module, mut function) = (0, 0);
    let image = c".version 6.0\n.target sm_50\n.address_size 64\n";
    expect!(
        cuModuleLoadData(&mut module, image.as_ptr().cast()),
        CuResult::Success
    );
    expect!(
        cuModuleGetFunction(&mut function, module, c"nope".as_ptr()),
        CuResult::NotFound
    );
    expect!(
        cuModuleGetFunction(&mut function, module, c"add".as_ptr()),
        CuResult::Success
    );
    let (stream, mut data) = (create_stream()?, mem_alloc(400)?);
    let (mut count, mut addend) = (100u32, 5u32);
    let mut parameters = [
        (&raw mut data).cast(),
        (&raw mut count).cast(),
        (&raw mut addend).cast(),
    ];
    expect!(cuMemsetD32Async(data, 7, 100, stream), CuResult::Success);
    for _ in 0..3 {
        let launched = cuLaunchKernel(
            function,
            1,
            1,
            1,
            128,
            1,
            1,
            0,
            stream,
            parameters.as_mut_ptr(),
            std::ptr::null_mut(),
        );
        expect!(launched, CuResult::Success);
    }
    let mut words = [0u32; 100];
    expect!(
        cuMemcpyDtoHAsync_v2(words.as_mut_ptr().cast(), data, 400, stream),
        CuResult::Success
    );
    sync_stream(stream)?;
    expect!(words, [22; 100]);
    expect!(cuModuleUnload(module), CuResult::Success);
    expect!(cuMemFree_v2(data), CuResult::Success);
    destroy_stream(stream);
    Ok(())
}
