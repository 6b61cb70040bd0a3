//! The program's commands: options, output, exit codes, and what they change.

mod command_line;
mod demo;
mod doctor;
mod export;
mod fault_injection;
mod import;
mod interrupted_import;
mod output_failures;
mod seed;
