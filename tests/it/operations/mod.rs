//! What operators rely on: logs, metrics, traces, shutdown, the runbook and the deployment files.

mod deployment;
mod incidents;
mod logs;
mod metrics;
mod shutdown;
mod traces;
