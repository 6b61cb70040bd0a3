// A search index in memory, kept up to date by the event feed. It stands for your search engine.
import { CursorExpiredError, type Event, type Pet, type Petstore } from '@petstore/client';

export class SearchIndex {
  #pets = new Map<number, Pet>();

  /** Returns the pets whose name contains the text, the newest first. */
  search(text: string): Pet[] {
    const wanted = text.toLowerCase();
    return [...this.#pets.values()]
      .filter((pet) => pet.name.toLowerCase().includes(wanted))
      .sort((one, other) => other.id - one.id);
  }

  /** Builds the index and keeps it up to date, until the signal is aborted. Calls `onReady` when the index is complete. */
  async follow(shop: Petstore, onReady: () => void, signal?: AbortSignal): Promise<never> {
    for (;;) {
      try {
        await this.#buildAndFollow(shop, onReady, signal);
      } catch (error) {
        if (!(error instanceof CursorExpiredError)) {
          throw error;
        }
        // The events after the position are no longer stored, or the database was restored: build the index again.
      }
    }
  }

  async #buildAndFollow(shop: Petstore, onReady: () => void, signal?: AbortSignal): Promise<void> {
    const after = await shop.events.position(); // before the pets are read, so that no change is missed
    const pets = new Map<number, Pet>();
    for await (const pet of shop.pets.list()) {
      pets.set(pet.id, pet);
    }
    this.#pets = pets;
    onReady();
    for await (const page of shop.events.follow({ after }, { signal }).pages()) {
      await this.#update(shop, page.items);
    }
  }

  /** Reads the pets that have changed. */
  async #update(shop: Petstore, events: Event[]): Promise<void> {
    const ids = new Set<number>();
    for (const { type, petId, lastPetId = petId } of events) {
      // When an order changes its pet, the pet has its own event.
      if (type.startsWith('pet')) {
        for (let id = petId; id <= lastPetId; id += 1) {
          ids.add(id);
        }
      }
    }
    const found = new Map((await shop.pets.getMany([...ids])).map((pet) => [pet.id, pet]));
    for (const id of ids) {
      const pet = found.get(id);
      if (pet) {
        this.#pets.set(id, pet);
      } else {
        this.#pets.delete(id);
      }
    }
  }
}
