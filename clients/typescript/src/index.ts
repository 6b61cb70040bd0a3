// The public API of the package.
export {
  Petstore,
  type EventFilter,
  type Events,
  type FollowStart,
  type OrderFilter,
  type Orders,
  type OrderWithEtag,
  type PetFilter,
  type Pets,
  type PetWithEtag,
} from './client.js';
export {
  APIConnectionError,
  AuthenticationError,
  BadRequestError,
  ConflictError,
  CursorExpiredError,
  InternalServerError,
  NotFoundError,
  PermissionDeniedError,
  PetstoreError,
  PreconditionFailedError,
  RateLimitError,
  RequestAbortedError,
  RouteNotFoundError,
  ServiceUnavailableError,
} from './errors.js';
export type {
  Metadata,
  MetadataPatch,
  NewOrder,
  NewPet,
  Order,
  OrderPatch,
  OrderStatus,
  Pet,
  PetPatch,
  PetStatus,
} from './generated/types.gen.js';
export type { Event, EventType } from './models.js';
export type {
  Attempt,
  CallOptions,
  CreateOptions,
  PetstoreOptions,
  QueryValue,
  RequestOptions,
  ResponseInfo,
  Runtime,
  SendOptions,
  UpdateOptions,
  WriteOptions,
} from './options.js';
export type { List, Page } from './pagination.js';
