//! The event feed.

mod feed;
mod long_polling;
mod retention;
