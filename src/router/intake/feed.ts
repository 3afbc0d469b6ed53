import type { ResidencyRun } from "../../events/index.ts";
import type {
  ResidencyBatch,
  ResidencyHeartbeat,
  ResidencySource,
} from "../../observability/activity/index.ts";

/** All that one source has, as it was at `sequence`. Parents stand before their children. */
export interface Picture {
  readonly source: ResidencySource;
  readonly sequence: number;
  /** All that the device holds is among it, as the source says. */
  readonly isDeviceKnown: boolean;
  readonly runs: readonly ResidencyRun[];
}

/**
 * `changes`: in order, the first at or before the number that was asked for; there may be more
 * behind. `too_old`: it keeps them no more, or is another run: only a picture helps.
 */
export type RangeAnswer =
  | { readonly kind: "changes"; readonly batches: readonly ResidencyBatch[] }
  | { readonly kind: "too_old" }
  | { readonly kind: "failed"; readonly why: string };

/** `failed`: nobody answered in time, it came only in part, or its parts do not fit together. */
export type PictureAnswer =
  | { readonly kind: "picture"; readonly picture: Picture }
  | { readonly kind: "failed"; readonly why: string };

/** Where what was missed is asked for. Neither rejects, but with ABORTED when the signal fires. */
export interface ResidencyArchive {
  /** Changes from number `from` on, to `to` at least where they are there. */
  range(
    source: ResidencySource,
    from: number,
    to: number,
    signal: AbortSignal,
  ): Promise<RangeAnswer>;
  /** Of that incarnation, or of a later one. */
  picture(source: ResidencySource, signal: AbortSignal): Promise<PictureAnswer>;
}

/** Takes what sources say of themselves, as it comes. */
export interface ResidencyListener {
  batch(batch: ResidencyBatch): void;
  heartbeat(heartbeat: ResidencyHeartbeat): void;
}
