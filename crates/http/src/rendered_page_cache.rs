//! A cache of one page of pets: the one that was rendered last.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use petstore_domain::pet::PetPage;

use super::error::ApiError;

/// What a response shows of a page.
#[derive(Clone)]
pub(crate) struct RenderedPetPage {
    pub(crate) body: Bytes,
    pub(crate) tag: Bytes,
    /// The `Link` to the next page.
    pub(crate) next: Option<Bytes>,
}

/// The page that was rendered last. Equal requests that arrive together get the same page from the storage; it is rendered once for
/// all of them. Without this, the first page was about a tenth slower at 64 connections.
#[derive(Default)]
pub(crate) struct RenderedPageCache(Mutex<Option<(Arc<PetPage>, RenderedPetPage)>>);

impl RenderedPageCache {
    pub(crate) fn rendered(
        &self,
        page: Arc<PetPage>,
        render: impl FnOnce(&PetPage) -> Result<RenderedPetPage, ApiError>,
    ) -> Result<RenderedPetPage, ApiError> {
        if let Some((known, rendered)) = &*self.lock()
            && Arc::ptr_eq(known, &page)
        {
            return Ok(rendered.clone());
        }
        let rendered = render(&page)?;
        *self.lock() = Some((page, rendered.clone()));
        Ok(rendered)
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Arc<PetPage>, RenderedPetPage)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
