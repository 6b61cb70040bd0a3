// The types of the service's values that differ from the generated ones.
import type { Event as DocumentedEvent } from './generated/types.gen.js';

/** What happened, such as `pet.created`. Types may be added, so ignore types that you do not know. */
export type EventType = DocumentedEvent['type'] | (string & {});

/** Something that happened to a pet or an order. */
export type Event = Omit<DocumentedEvent, 'type'> & { type: EventType };
