//! NCCL on host memory: communicators whose ranks are threads, of this process or of several, or all on
//! one thread by groups.
//!
//! | file | holds |
//! |---|---|
//! | `api` | the C functions, in the header's order |
//! | `call`, `group`, `job` | what moves data: its checks, its collection, and what carries it out |
//! | `comm`, `life`, `ids` | communicators: what they are, how they are made and end, how ranks meet |
//! | `config`, `operators`, `window`, `param`, `error` | the rest of what a program passes or asks |
//! | `exchange`, `transfer`, `arithmetic` | the ranks' data |
//! | `processes` | ranks of other processes |

mod api;
mod arithmetic;
mod call;
mod comm;
mod config;
mod error;
mod exchange;
mod group;
mod ids;
mod job;
mod life;
mod operators;
mod param;
mod processes;
mod transfer;
mod window;
