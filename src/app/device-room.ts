import type { Config } from "../config/index.ts";
import type { Clock } from "../core/index.ts";
import type { Gpus, Native, Rdma, Region } from "../native/index.ts";
import type { Health, Logger } from "../observability/index.ts";

export interface DeviceRoomParts {
  readonly config: Config;
  readonly native: Native;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly health: Health;
  readonly region: Region;
}

/** GPUs and NICs of this host, from their opening until nothing of them touches the arena. */
export class DeviceRoom implements AsyncDisposable {
  /** Null where they are off, or cannot be used: then engines copy for themselves. */
  readonly gpus: Gpus | null = null;
  /** Null where nobody would use it: peers are off, or RDMA is. Its `state` says what it came to. */
  readonly rdma: Rdma | null = null;

  /** Never waits for a device. Throws UNSUPPORTED where one is required and cannot be used. */
  static open(_parts: DeviceRoomParts): DeviceRoom {
    return new DeviceRoom();
  }

  /** So many bytes of the arena, from its start, are backed by memory now. */
  ready(_bytes: number): void {}

  async [Symbol.asyncDispose](): Promise<void> {}
}
