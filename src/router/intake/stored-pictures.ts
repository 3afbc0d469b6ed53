import type { DurableBus } from "../../bus/index.ts";
import { decodeStoredSnapshot, snapshotBucket, snapshotObject } from "../../events/index.ts";
import type { ResidencySource } from "../../observability/activity/index.ts";
import type { PictureAnswer } from "./feed.ts";
import type { PictureGiver } from "./first-archive.ts";

/** Eight bytes a block and something for each run. */
const BYTES_PER_BLOCK = 16;

/** Pictures that publishers keep with the broker, beside the stream of their events. */
export class StoredPictures implements PictureGiver {
  readonly #durable: DurableBus;
  readonly #bucket: string;
  readonly #blocksMax: number;

  constructor(durable: DurableBus, cluster: string, pictureBlocksMax: number) {
    this.#durable = durable;
    this.#bucket = snapshotBucket(cluster);
    this.#blocksMax = pictureBlocksMax;
  }

  async picture(source: ResidencySource): Promise<PictureAnswer> {
    const name = snapshotObject(source);
    const objects = this.#durable.objects(this.#bucket);
    const read = await objects.get(name, this.#blocksMax * BYTES_PER_BLOCK);
    if (read.kind !== "value") return { kind: "failed", why: read.kind };
    const decoded = decodeStoredSnapshot(read.data);
    if (!decoded.ok) return { kind: "failed", why: decoded.why };
    const [first, ...rest] = decoded.value;
    const { worker, rank } = first.source;
    if (worker !== source.worker || rank !== source.rank) {
      return { kind: "failed", why: "a picture of another source" };
    }
    const runs = [...first.runs, ...rest.flatMap((part) => part.runs)];
    const { sequence, isDeviceKnown } = first;
    return { kind: "picture", picture: { source: first.source, sequence, isDeviceKnown, runs } };
  }
}
