import type { Bus } from "../bus/index.ts";
import { type Clock, type Random, systemClock, systemRandom } from "../core/index.ts";
import { BusControlClient } from "./bus-client.ts";
import type { ControlClient } from "./control-client.ts";
import { jsonWire } from "./wire.ts";

export interface ConnectControlOptions {
  /** Stays the caller's: it is not closed with the client. */
  readonly bus: Bus;
  /** Who sends; workers keep order, ids and pins apart by it. */
  readonly issuer?: string;
  readonly clock?: Clock;
  readonly random?: Random;
}

/** A client that sends commands over a bus. */
export async function connectControl(options: ConnectControlOptions): Promise<ControlClient> {
  const { bus, issuer = null, clock = systemClock, random = systemRandom } = options;
  return new BusControlClient({ bus, ownsBus: false, clock, random, issuer, wire: jsonWire });
}
