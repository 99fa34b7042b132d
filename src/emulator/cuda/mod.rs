//! The driver: devices, contexts, memory, streams, events, graphs and kernels on host memory.

mod api;
mod capture;
mod context;
mod device;
mod error;
mod event;
mod graph;
mod kernel;
mod memory;
mod pool;
mod progress;
mod shared;
mod stream;
mod table;
mod word;

pub use kernel::{Launch, register_kernel};

pub(in crate::emulator) use context::device_for_nccl;
pub(in crate::emulator) use device::device_count;
pub(in crate::emulator) use memory::{Kind, Range, allocate, find, release, shared_at};
pub(in crate::emulator) use pool::spread;
pub(in crate::emulator) use shared::{Piece, Shared, file as shared_file};
pub(in crate::emulator) use stream::{
    Done, Execution, Work, capture_id, enqueue, join, record_event,
};

use table::{Table, new_handle};

use std::sync::{
    Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

/// Locks `mutex`. What it guards is whole after each statement, so a panic elsewhere does not spoil
/// it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait<'a, T>(changed: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    changed.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
