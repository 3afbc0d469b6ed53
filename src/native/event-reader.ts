/**
 * Calls `drain` each time native threads have written the eventfd, so that a burst of completions
 * costs one wake. The descriptor stays its owner's.
 */
export class EventReader {
  readonly #reader: { read(): Promise<{ done: boolean }>; cancel(): Promise<void> };
  readonly #drained: Promise<void>;
  #stopped = false;

  constructor(eventFd: number, drain: () => void) {
    this.#reader = Bun.file(eventFd).stream().getReader();
    this.#drained = this.#drainOnWake(drain);
  }

  async #drainOnWake(drain: () => void): Promise<void> {
    while (true) {
      const { done } = await this.#reader.read();
      if (done || this.#stopped) return;
      drain();
    }
  }

  /** `drain` is not called any more once this has resolved. */
  async stop(): Promise<void> {
    this.#stopped = true;
    await this.#reader.cancel();
    await this.#drained;
  }
}
