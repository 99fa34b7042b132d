//! The two macros that every declaration is written in, and what they expand to calls of.

use std::ffi::{c_char, c_int};
use std::fmt;

/// Binds a list of C functions, written in the syntax of an `extern` block.
///
/// This is the one place that knows how a declaration becomes callable. The list is an `extern` block,
/// whose symbols come from elsewhere. Linked, the build script has told the linker which library has them;
/// emulated, this crate defines them itself; opened at run time, each is a jump that is defined here.
macro_rules! bind {
    (
        library $library:ident;
        $(
            $(#[$meta:meta])*
            pub fn $name:ident($($parameter:ident: $kind:ty),* $(,)?) $(-> $answer:ty)?;
        )*
    ) => {
        unsafe extern "C" {
            $(
                $(#[$meta])*
                pub fn $name($($parameter: $kind),*) $(-> $answer)?;
            )*
        }

        /// The C name of each function declared here, in the header's order.
        pub const FUNCTIONS: &[&str] = &[$(stringify!($name)),*];

        /// The release that brought each of them.
        #[cfg(dlopen)]
        pub(crate) const SINCE: &[[i32; 3]] =
            &[$($crate::dlopen::since(concat!($(stringify!($meta)),*))),*];

        $(
            #[cfg(dlopen)]
            $crate::dlopen::function!($library, $name($($parameter: $kind),*) $(-> $answer)?);
        )*
    };
}
pub(crate) use bind;

/// Declares a C enum as a transparent integer with one associated constant an enumerator.
///
/// The C names are strings, since a documentation alias can be nothing else; a value that only this
/// crate returns has none. A value that is not listed is kept as it is: libraries are updated more often than programs.
/// Further names for a value (aliases, counts) are written as plain constants beside it, so that
/// `Debug` never prints them.
macro_rules! c_enum {
    (
        $(#[$meta:meta])*
        pub enum $c_type:literal as $name:ident {
            $(
                $(#[$value_meta:meta])*
                $($c_value:literal as)? $value:ident = $number:expr,
            )*
        }
    ) => {
        $(#[$meta])*
        #[doc(alias = $c_type)]
        #[repr(transparent)]
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name(
            /// The number that C sees.
            pub std::ffi::c_int,
        );

        #[allow(non_upper_case_globals)]
        impl $name {
            $(
                $(#[$value_meta])*
                $(#[doc(alias = $c_value)])?
                pub const $value: Self = Self($number);
            )*

            /// The enumerator's name in the C header; `None` for a value that this crate does not list.
            pub fn c_name(self) -> Option<&'static str> {
                let c_name = $crate::bind::name(Self::NAMES, self.0)?.1;
                (!c_name.is_empty()).then_some(c_name)
            }

            /// Each value with its two names, `Debug`'s last. A value of this crate's own has none in C.
            const NAMES: &[(std::ffi::c_int, &str, &str)] = &[
                $(($number, concat!($($c_value)?), stringify!($value)),)*
            ];
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                $crate::bind::debug(Self::NAMES, stringify!($name), self.0, f)
            }
        }
    };
}
pub(crate) use c_enum;

/// The entry of a value in an enum's table of names. A table, and no generated comparisons, since
/// those are most of what this crate would take to compile.
pub(crate) fn name<'a>(
    names: &'a [(c_int, &'static str, &'static str)],
    value: c_int,
) -> Option<&'a (c_int, &'static str, &'static str)> {
    names.iter().find(|(number, _, _)| *number == value)
}

/// `Debug` of every enum: the constant's name, or the type and the number.
pub(crate) fn debug(
    names: &[(c_int, &'static str, &'static str)],
    kind: &str,
    value: c_int,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    match name(names, value) {
        Some((_, _, name)) => f.write_str(name),
        None => write!(f, "{kind}({value})"),
    }
}

/// A C string of a library as text; `None` for null. Bytes that are not UTF-8 are replaced.
///
/// Other threads may overwrite it meanwhile, as NCCL does with its latest message, so each byte is read
/// once; what is longer than any message is cut off.
///
/// # Safety
///
/// `text` is null or points to bytes that end with a zero byte.
pub(crate) unsafe fn text(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    let mut bytes = Vec::new();
    while bytes.len() < 4096 {
        // SAFETY: no zero byte came before, so there is another byte to read.
        match unsafe { text.add(bytes.len()).read_volatile() } {
            0 => break,
            byte => bytes.push(byte as u8),
        }
    }
    Some(String::from_utf8_lossy(&bytes).trim().to_owned())
}
