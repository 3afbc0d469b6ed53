export {
  type KeeperOptions,
  type KeeperStats,
  PictureKeeper,
  type RestoreOutcome,
} from "./picture-keeper.ts";
export { encodeState, readState, type SavedState } from "./saved-sources.ts";
