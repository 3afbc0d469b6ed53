/** A way of making room, fed with a trace. */
export interface Simulation {
  /** The request whose blocks are `trace.blocks[from .. to)`; each once, in order. */
  serve(request: number, from: number, to: number): void;
}
