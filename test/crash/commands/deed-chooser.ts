import { type Random, randomBelow } from "../../../src/core/index.ts";
import { BLOCKS, choosePrompt, idsOfPrompt, isOneIn, PROMPT_BLOCKS } from "../content.ts";
import type { Deed, DeedRoom } from "./deed.ts";
import { PauseDeed, PinDeed, RenewDeed, RetainDeed, RevokeDeed, UnpinDeed } from "./hold-deeds.ts";
import type { ModelHold } from "./hold-model.ts";
import { FlushDeed, MarkDeed, PruneDeed, ThinkPurgeDeed, WarmDeed } from "./removal-deeds.ts";

const TTL_MIN_MS = 2_000;
const TTL_SPREAD_MS = 4_000;
/** Blocks of a pin: they must not take all of the budget. */
const PINNED_MAX = 4;
const PRIORITY_MAX = 99;
const LASTING_OWNERS = 3;
const OVER_REMEMBERED = 20;

/** How often each is chosen, of all together. */
const WEIGHTS = {
  pin: 4,
  pinWithEnd: 7,
  unpin: 5,
  retain: 2,
  unretain: 1,
  pause: 6,
  renew: 4,
  revoke: 3,
  mark: 2,
  thinkPurge: 2,
  prune: 2,
  flush: 1,
  warm: 2,
} as const;
type Choice = keyof typeof WEIGHTS;
const CHOICES = Object.entries(WEIGHTS).flatMap(([choice, weight]) =>
  Array.from({ length: weight }, () => choice as Choice),
);

/** One who sends commands: nobody else touches the holds of its owners, nor its leases. */
export class DeedChooser {
  /** Of owners and leases; never used by another. */
  readonly #name: string;
  readonly #room: DeedRoom;
  #serial = 0;
  readonly #over: string[] = [];

  constructor(name: string, room: DeedRoom) {
    this.#name = name;
    this.#room = room;
  }

  next(random: Random): Deed {
    for (;;) {
      const choice = CHOICES[randomBelow(random, CHOICES.length)]!;
      const deed = this.#make(choice, random);
      if (deed?.mayBeSent(performance.now())) return deed;
    }
  }

  #make(choice: Choice, random: Random): Deed | null {
    const room = this.#room;
    switch (choice) {
      case "pin":
        return this.#pin(random);
      case "pinWithEnd":
        return new PinDeed(room, this.#fresh("t"), someIds(random, PINNED_MAX), someTtl(random));
      case "unpin":
        return this.#unpin(random);
      case "retain": {
        const priority = 1 + randomBelow(random, PRIORITY_MAX);
        return new RetainDeed(
          room,
          this.#lasting(random),
          someIds(random, PROMPT_BLOCKS),
          priority,
        );
      }
      case "unretain":
        return new RetainDeed(room, this.#lasting(random), someIds(random, PROMPT_BLOCKS), 0);
      case "pause":
        return this.#pause(random);
      case "renew":
        return this.#onLease(random, (lease) => new RenewDeed(room, lease, someTtl(random)));
      case "revoke":
        return this.#onLease(random, (lease) => new RevokeDeed(room, lease));
      case "mark":
        return new MarkDeed(room, someIds(random, PINNED_MAX));
      case "thinkPurge":
        return new ThinkPurgeDeed(room, someIds(random, PROMPT_BLOCKS));
      case "prune":
        return new PruneDeed(room, randomBelow(random, BLOCKS), 1);
      case "flush":
        return isOneIn(random, 4) ? new FlushDeed(room, false) : null;
      case "warm":
        return new WarmDeed(room, someIds(random, PROMPT_BLOCKS));
      default:
        return choice satisfies never;
    }
  }

  #lasting(random: Random): string {
    return `${this.#name}-${randomBelow(random, LASTING_OWNERS)}`;
  }

  #fresh(kind: string): string {
    return `${this.#name}-${kind}${++this.#serial}`;
  }

  #own(kind: ModelHold["kind"]): ModelHold[] {
    const mine = `${this.#name}-`;
    return this.#room.model
      .all()
      .filter((hold) => hold.kind === kind && hold.owner.startsWith(mine));
  }

  /** Often what the owner has pinned before, be it for a time: then it is counted. */
  #pin(random: Random): Deed {
    const pins = this.#own("pin");
    const again = isOneIn(random, 2) ? pins[randomBelow(random, pins.length)] : undefined;
    const ids = again === undefined ? someIds(random, PINNED_MAX) : [...again.blocks.keys()];
    return new PinDeed(this.#room, again?.owner ?? this.#lasting(random), ids, null);
  }

  #unpin(random: Random): Deed | null {
    const pins = this.#own("pin");
    if (pins.length === 0 || isOneIn(random, 6)) {
      return new UnpinDeed(this.#room, this.#lasting(random), someIds(random, PINNED_MAX));
    }
    const { owner, blocks } = pins[randomBelow(random, pins.length)]!;
    return new UnpinDeed(this.#room, owner, [...blocks.keys()]);
  }

  #pause(random: Random): Deed | null {
    // What nothing builds upon goes with its lease.
    const ids = isOneIn(random, 2) ? someLastIds(random) : someIds(random, PINNED_MAX);
    const ttlMs = someTtl(random);
    const leases = this.#own("lease");
    if (leases.length > 0 && isOneIn(random, 4)) {
      const { owner, name } = leases[randomBelow(random, leases.length)]!;
      return new PauseDeed(this.#room, { owner, lease: name!, ttlMs }, ids);
    }
    const lease = this.#fresh("l");
    this.#over.push(lease);
    if (this.#over.length > OVER_REMEMBERED) this.#over.shift();
    return new PauseDeed(this.#room, { owner: this.#lasting(random), lease, ttlMs }, ids);
  }

  /** One that is there, as a rule. */
  #onLease(random: Random, make: (lease: string) => Deed): Deed | null {
    const leases = this.#own("lease");
    if (isOneIn(random, 8) && this.#over.length > 0) {
      return make(this.#over[randomBelow(random, this.#over.length)]!);
    }
    const hold = leases[randomBelow(random, leases.length)];
    return hold === undefined ? null : make(hold.name!);
  }
}

/** Blocks of one prompt, as a rule from its start. */
function someIds(random: Random, max: number): number[] {
  const ids = idsOfPrompt(choosePrompt(random));
  const from = isOneIn(random, 3) ? randomBelow(random, PROMPT_BLOCKS) : 0;
  return ids.slice(from, from + 1 + randomBelow(random, max));
}

function someLastIds(random: Random): number[] {
  return idsOfPrompt(choosePrompt(random)).slice(-1 - randomBelow(random, PINNED_MAX));
}

function someTtl(random: Random): number {
  return TTL_MIN_MS + randomBelow(random, TTL_SPREAD_MS);
}
