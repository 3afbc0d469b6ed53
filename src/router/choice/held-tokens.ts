import type { PrefixMatches } from "../prefix-index.ts";

/**
 * How far into one prompt each target's tiers reach, in tokens from its start, put together from
 * several looks: other key spaces, other block sizes, predictions. By number of the target.
 */
export class HeldTokens {
  #device = new Uint32Array(64);
  #host = new Uint32Array(64);
  #disk = new Uint32Array(64);

  /** Forgets all, for targets numbered below `width`. */
  start(width: number): void {
    if (width > this.#device.length) {
      const slots = 2 ** Math.ceil(Math.log2(width));
      this.#device = new Uint32Array(slots);
      this.#host = new Uint32Array(slots);
      this.#disk = new Uint32Array(slots);
      return;
    }
    this.#device.fill(0, 0, width);
    this.#host.fill(0, 0, width);
    this.#disk.fill(0, 0, width);
  }

  add(matches: PrefixMatches, blockTokens: number): void {
    const { count, targets, device, host, disk } = matches;
    for (let i = 0; i < count; i++) {
      const target = targets[i]!;
      const onDevice = device[i]!;
      const onHost = onDevice + host[i]!;
      const onDisk = onHost + disk[i]!;
      this.#raise(this.#device, target, onDevice * blockTokens);
      this.#raise(this.#host, target, onHost * blockTokens);
      this.#raise(this.#disk, target, onDisk * blockTokens);
    }
  }

  /** Leading blocks on the device, by number of the target. */
  addDevice(blocks: Uint32Array, blockTokens: number): void {
    for (let target = 0; target < blocks.length; target++) {
      if (blocks[target]! > 0) this.#raise(this.#device, target, blocks[target]! * blockTokens);
    }
  }

  deviceOf(target: number): number {
    return this.#device[target]!;
  }

  /** Beyond what the device has. */
  hostOf(target: number): number {
    return Math.max(0, this.#host[target]! - this.#device[target]!);
  }

  /** Beyond what device and host have. */
  diskOf(target: number): number {
    return Math.max(0, this.#disk[target]! - Math.max(this.#host[target]!, this.#device[target]!));
  }

  /** Behind the last target there is somebody's number that the table does not know: left out. */
  #raise(column: Uint32Array, target: number, tokens: number): void {
    if (tokens > (column[target] ?? tokens)) column[target] = tokens;
  }
}
