//! Parameters that can be asked for, as NCCL 2.32.3 has them when no variable is set.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};

use anyhow::{Result, ensure};

use crate::calls::*;
use crate::cases::{Cases, Variables};
use crate::expect;
use crate::world::{ANY, Need};

const IA: NcclResult = NcclResult::InvalidArgument;
const OK: NcclResult = NcclResult::Success;

/// What a parameter holds.
#[derive(Clone, Copy)]
enum Value {
    /// Four bytes that no typed getter takes.
    Enum,
    Bool,
    U32,
    U64(u64),
    Text(&'static CStr),
}

const UNSET: Variables = &[
    ("NCCL_DEBUG", None),
    ("NCCL_DEBUG_FILE", None),
    ("NCCL_DEBUG_LEVELS", None),
    ("NCCL_DEBUG_SUBSYS", None),
    ("NCCL_DEBUG_TIMESTAMP_FORMAT", None),
    ("NCCL_DEBUG_TIMESTAMP_LEVELS", None),
    ("NCCL_NO_CACHE", None),
    ("NCCL_PARAM_DUMP_ALL", None),
    ("NCCL_SET_THREAD_NAME", None),
    ("NCCL_WARN_ENABLE_DEBUG_INFO", None),
];

/// The names that are listed, in the order of the list, and three more; with their text.
const PARAMETERS: [(&CStr, Value, &CStr); 10] = [
    (c"NCCL_DEBUG_FILE", Value::Text(c""), c""),
    (
        c"NCCL_DEBUG_TIMESTAMP_FORMAT",
        Value::Text(c"[%F %T] "),
        c"[%F %T] ",
    ),
    (c"NCCL_DEBUG_TIMESTAMP_LEVELS", Value::U32, c"WARN,ATTN"),
    (c"NCCL_SET_THREAD_NAME", Value::Bool, c"FALSE"),
    (
        c"NCCL_DEBUG_SUBSYS",
        Value::U64(4225),
        c"INIT,ENV,BOOTSTRAP",
    ),
    (c"NCCL_DEBUG_LEVELS", Value::U32, c"NONE"),
    (c"NCCL_DEBUG", Value::Enum, c"<unknown>"),
    (c"NCCL_NO_CACHE", Value::Text(c""), c""),
    (c"NCCL_PARAM_DUMP_ALL", Value::Bool, c"FALSE"),
    (c"NCCL_WARN_ENABLE_DEBUG_INFO", Value::Bool, c"FALSE"),
];

fn bind(key: &CStr) -> Result<NcclParamHandle> {
    let mut handle = null_mut();
    expect!(ncclParamBind(&mut handle, key.as_ptr()), OK);
    ensure!(!handle.is_null());
    Ok(handle)
}

pub fn add(cases: &mut Cases) {
    cases.subject("params");
    let need: Need = ANY.calls("ncclParamBind");
    cases.bare("bind", need, || {
        let mut handle = 7 as NcclParamHandle;
        for unknown in [c"NOPE", c"", c"NCCL_ALGO", c"nccl_debug"] {
            expect!(ncclParamBind(&mut handle, unknown.as_ptr()), IA);
            expect!(handle as usize, 7);
        }
        expect!(ncclParamBind(null_mut(), c"NCCL_DEBUG".as_ptr()), IA);
        expect!(ncclParamBind(&mut handle, null()), IA);
        bind(c"NCCL_DEBUG")?;
        Ok(())
    });
    cases.bare("null_handles_and_null_outs", need, || {
        let handle = bind(c"NCCL_DEBUG_SUBSYS")?;
        let (mut text, mut len) = (null(), 0);
        let mut bytes = [0u8; 8];
        let out: *mut c_void = bytes.as_mut_ptr().cast();
        expect!(ncclParamGetI8(null_mut(), &mut 0), IA);
        expect!(ncclParamGetI32(null_mut(), &mut 0), IA);
        expect!(ncclParamGetU64(null_mut(), &mut 0), IA);
        expect!(ncclParamGetU64(handle, null_mut()), IA);
        expect!(ncclParamGetStr(null_mut(), &mut text), IA);
        expect!(ncclParamGetStr(handle, null_mut()), IA);
        expect!(ncclParamGet(null_mut(), out, 8, &mut len), IA);
        expect!(ncclParamGet(handle, null_mut(), 8, &mut len), IA);
        expect!(ncclParamGet(handle, out, 8, null_mut()), IA);
        let key = c"NCCL_DEBUG".as_ptr();
        expect!(ncclParamGetParameter(null(), &mut text, &mut len), IA);
        expect!(ncclParamGetParameter(key, null_mut(), &mut len), IA);
        expect!(ncclParamGetParameter(key, &mut text, null_mut()), IA);
        let mut table = null_mut();
        expect!(ncclParamGetAllParameterKeys(null_mut(), &mut len), IA);
        expect!(ncclParamGetAllParameterKeys(&mut table, null_mut()), IA);
        Ok(())
    });
    cases.bare("an_unknown_parameter", need, || {
        let (mut text, mut len) = (c"before".as_ptr(), 55);
        expect!(
            ncclParamGetParameter(c"NOPE".as_ptr(), &mut text, &mut len),
            IA
        );
        ensure!(text.is_null());
        expect!(len, 0);
        Ok(())
    });
    cases.child("keys", need.nccl(32), UNSET, || {
        let (mut table, mut len) = (null_mut(), 0);
        expect!(ncclParamGetAllParameterKeys(&mut table, &mut len), OK);
        // SAFETY: NCCL gave a table of `len` texts, which this thread's next call replaces.
        let keys = unsafe { std::slice::from_raw_parts::<*const c_char>(table, len as usize) };
        let keys: Vec<&CStr> = keys.iter().map(|&key| c_text(key)).collect();
        expect!(
            keys,
            PARAMETERS[..7]
                .iter()
                .map(|(name, _, _)| *name)
                .collect::<Vec<_>>()
        );
        Ok(())
    });
    for (name, value, text) in PARAMETERS {
        let title = name.to_str().expect("a name of letters");
        cases.child(
            &title["NCCL_".len()..].to_lowercase(),
            need.nccl(32),
            UNSET,
            move || parameter(name, value, text),
        );
    }
}

fn parameter(name: &CStr, value: Value, text: &CStr) -> Result<()> {
    let handle = bind(name)?;
    typed(handle, value)?;
    whole(handle, value)?;
    let (mut got, mut len) = (null(), 0);
    expect!(ncclParamGetParameter(name.as_ptr(), &mut got, &mut len), OK);
    expect!(c_text(got), text);
    expect!(len as usize, text.count_bytes());
    Ok(())
}

/// Each getter takes its own type alone.
fn typed(handle: NcclParamHandle, value: Value) -> Result<()> {
    let code = |fits| if fits { OK } else { IA };
    let mut number = 77;
    expect!(ncclParamGetI8(handle, &mut 0), IA);
    expect!(ncclParamGetI16(handle, &mut 0), IA);
    expect!(ncclParamGetI32(handle, &mut 0), IA);
    expect!(ncclParamGetI64(handle, &mut 0), IA);
    expect!(ncclParamGetU8(handle, &mut 0), IA);
    expect!(ncclParamGetU16(handle, &mut 0), IA);
    expect!(
        ncclParamGetU32(handle, &mut 0),
        code(matches!(value, Value::U32))
    );
    expect!(
        ncclParamGetU64(handle, &mut number),
        code(matches!(value, Value::U64(_)))
    );
    expect!(
        number,
        if let Value::U64(number) = value {
            number
        } else {
            77
        }
    );
    let mut text = null();
    expect!(
        ncclParamGetStr(handle, &mut text),
        code(matches!(value, Value::Text(_)))
    );
    if let Value::Text(expected) = value {
        expect!(c_text(text), expected);
    }
    Ok(())
}

/// The bytes of the value, whatever its type.
fn whole(handle: NcclParamHandle, value: Value) -> Result<()> {
    let size = match value {
        Value::Bool => 1,
        Value::Enum | Value::U32 => 4,
        Value::U64(_) => 8,
        Value::Text(text) => text.to_bytes_with_nul().len() as i32,
    };
    let mut bytes = [0u8; 64];
    let out: *mut c_void = bytes.as_mut_ptr().cast();
    for room in [0, -1] {
        let mut len = 55;
        expect!(ncclParamGet(handle, out, room, &mut len), IA);
        expect!(len, 55);
    }
    for room in [1, 2, 4, 8, 64] {
        let mut len = 55;
        expect!(
            ncclParamGet(handle, out, room, &mut len),
            if room < size { IA } else { OK }
        );
        expect!(len, if room < size { 0 } else { size });
    }
    match value {
        Value::U64(number) => expect!(bytes[..8], number.to_le_bytes()),
        Value::Text(text) => expect!(&bytes[..size as usize], text.to_bytes_with_nul()),
        _ => {}
    }
    Ok(())
}
