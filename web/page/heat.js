// Observations of a board as heat maps: features named by column and row are cells of a picture for each channel.

import { make } from "./dom.js";

const CELL_NAME = /^(?:(.+): )?column (\d+), row (\d+)$/;

/** The features that are cells, by channel, and the indices of the others. */
export function splitFeatures(names) {
  const channels = new Map();
  const otherIndices = [];
  names.forEach((name, i) => {
    const [, channel = "board", column, row] = CELL_NAME.exec(name) ?? [];
    if (column === undefined) return otherIndices.push(i);
    if (!channels.has(channel)) channels.set(channel, []);
    channels.get(channel).push({ i, x: Number(column), y: Number(row) });
  });
  return { channels, otherIndices };
}

/** A picture for each channel. */
export class HeatMaps {
  constructor(holder, channels) {
    this.maps = [...channels].map(([name, cells]) => {
      const minRow = Math.min(...cells.map(({ y }) => y));
      const [width, height] = [1 + Math.max(...cells.map(({ x }) => x)), 1 + Math.max(...cells.map(({ y }) => y)) - minRow];
      const canvas = make("canvas", { width, height, role: "img", "aria-label": `${name}, ${width} by ${height} cells` });
      return { canvas, name, width, cells: cells.map(({ i, x, y }) => ({ i, pixel: (y - minRow) * width + x })) };
    });
    holder.replaceChildren(...this.maps.map(({ canvas, name }) => make("figure", { className: "map" }, canvas, make("figcaption", { textContent: name }))));
  }

  /** Colours each cell by its value, from -1 (orange) over 0 (clear) to 1 (blue). */
  show(values) {
    for (const { canvas, cells } of this.maps) {
      const image = new ImageData(canvas.width, canvas.height);
      for (const { i, pixel } of cells) {
        const value = Math.max(-1, Math.min(1, values[i]));
        image.data.set([...(value < 0 ? [194, 80, 28] : [42, 120, 214]), Math.round(255 * Math.abs(value))], 4 * pixel);
      }
      canvas.getContext("2d").putImageData(image, 0, 0);
    }
  }
}
