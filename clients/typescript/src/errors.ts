// The errors of the package. Every failed call throws a `PetstoreError` or one of its subclasses, whatever failed: the
// service, a proxy in front of it or the network. Only invalid options are errors of the language. Subclasses follow the
// HTTP status, so a code that this version does not know still has the right class. Only `CursorExpiredError` and
// `NotFoundError` follow the code: a missing pet must not be confused with a wrong base URL.

/** What a {@link PetstoreError} knows besides its message. */
export interface ErrorDetails {
  code: string;
  status?: number | undefined;
  requestId?: string | undefined;
  retryAfterMs?: number | undefined;
  field?: string | undefined;
  cause?: unknown;
}

/** The base class of all errors. Branch on the class or on `code`; show `message` to people. */
export class PetstoreError extends Error {
  /**
   * The code of the service's error, or one of the package: `no_response`, `unexpected_response` (not from the service,
   * such as the HTML page of a proxy) or `aborted`.
   */
  readonly code: string;
  /** The HTTP status. Undefined if there was no response. */
  readonly status: number | undefined;
  /** Identifies the request in the service's log: quote it when you report a problem. */
  readonly requestId: string | undefined;
  /** How long the service asked to wait, in `Retry-After`. */
  readonly retryAfterMs: number | undefined;
  /** The field of the body, the query parameter or the header that is wrong. Undefined if it is none of these. */
  readonly field: string | undefined;
  /**
   * Whether the change that the call asked for may have taken effect nevertheless: an attempt had no response, or failed
   * with 503 `outcome_unknown` or another 5xx. After 503 `unavailable`, it has not. Always false for reads.
   */
  outcomeUnknown = false;

  static {
    this.prototype.name = 'PetstoreError';
  }

  constructor(message: string, details: ErrorDetails) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    this.code = details.code;
    this.status = details.status;
    this.requestId = details.requestId;
    this.retryAfterMs = details.retryAfterMs;
    this.field = details.field;
  }
}

/** The request is wrong: 400, and every 4xx status without its own class. */
export class BadRequestError extends PetstoreError {
  static {
    this.prototype.name = 'BadRequestError';
  }
}

/** The API key is missing or invalid: 401. */
export class AuthenticationError extends PetstoreError {
  static {
    this.prototype.name = 'AuthenticationError';
  }
}

/** The API key lacks the scope that the operation needs: 403. */
export class PermissionDeniedError extends PetstoreError {
  static {
    this.prototype.name = 'PermissionDeniedError';
  }
}

/** The pet or the order does not exist: 404 `pet_not_found` or `order_not_found`. */
export class NotFoundError extends PetstoreError {
  static {
    this.prototype.name = 'NotFoundError';
  }
}

/**
 * Any other 404: the service has no such path, or another server responded. Check the base URL. It says nothing about a
 * pet or an order, so it is not a `NotFoundError`.
 */
export class RouteNotFoundError extends PetstoreError {
  static {
    this.prototype.name = 'RouteNotFoundError';
  }
}

/** The current state does not allow the change, or another pet has the `reference`: 409. */
export class ConflictError extends PetstoreError {
  static {
    this.prototype.name = 'ConflictError';
  }
}

/**
 * The events after this position are no longer kept, or the database was restored from a backup: 410 `cursor_expired`.
 * Start again: get `events.position()`, read the pets and orders that you need, then follow from that position.
 */
export class CursorExpiredError extends PetstoreError {
  static {
    this.prototype.name = 'CursorExpiredError';
  }
}

/**
 * The pet is not the one that `ifMatch` names: 412. Another client has changed it. If `outcomeUnknown` is true and the
 * service is older than 1.3.0, it may have been an earlier attempt of the same call: read the pet to find out.
 */
export class PreconditionFailedError extends PetstoreError {
  static {
    this.prototype.name = 'PreconditionFailedError';
  }
}

/** The API key has reached its rate limit: 429. */
export class RateLimitError extends PetstoreError {
  static {
    this.prototype.name = 'RateLimitError';
  }
}

/** The service has a bug: 500, and every 5xx status without its own class. */
export class InternalServerError extends PetstoreError {
  static {
    this.prototype.name = 'InternalServerError';
  }
}

/** The service, or a proxy in front of it, is temporarily unavailable: 408, 502, 503, 504. */
export class ServiceUnavailableError extends PetstoreError {
  static {
    this.prototype.name = 'ServiceUnavailableError';
  }
}

/** There was no complete response: the connection was refused or broken, or timed out. */
export class APIConnectionError extends PetstoreError {
  static {
    this.prototype.name = 'APIConnectionError';
  }
}

/** The caller's `AbortSignal` ended the call. `cause` is its reason. */
export class RequestAbortedError extends PetstoreError {
  static {
    this.prototype.name = 'RequestAbortedError';
  }
}

/** Returns the class for an error response. */
export function errorClass(status: number, code: string): typeof PetstoreError {
  if (code === 'cursor_expired') {
    return CursorExpiredError;
  }
  if (status === 404 && code.endsWith('_not_found') && code !== 'route_not_found') {
    return NotFoundError;
  }
  switch (status) {
    case 401:
      return AuthenticationError;
    case 403:
      return PermissionDeniedError;
    case 404:
      return RouteNotFoundError;
    case 409:
      return ConflictError;
    case 412:
      return PreconditionFailedError;
    case 429:
      return RateLimitError;
    case 408:
    case 502:
    case 503:
    case 504:
      return ServiceUnavailableError;
    default:
      return status >= 500 ? InternalServerError : status >= 400 ? BadRequestError : PetstoreError;
  }
}
