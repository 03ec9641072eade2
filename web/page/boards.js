// The places of a show's boards on the page, for all that is laid over them.

export class BoardLayout {
  /** The layout of the boards in a picture of this size; one of its pixels is `scale` pixels of the page. */
  constructor(show, { width, height }, scale) {
    const [columns, ...lengths] = show.board_layout(width, height);
    this.columns = columns;
    [this.left, this.top, this.width, this.height, this.gap] = lengths.map((length) => length * scale);
  }

  /** The rectangle of a board in pixels of the page. */
  rectangle(board) {
    return {
      left: this.left + (board % this.columns) * (this.width + this.gap),
      top: this.top + Math.floor(board / this.columns) * (this.height + this.gap),
      width: this.width,
      height: this.height,
    };
  }

  /** The number of the board at a point, which may be beyond the last; undefined beside all of them. */
  boardAt(x, y) {
    const column = Math.floor((x - this.left) / (this.width + this.gap));
    const row = Math.floor((y - this.top) / (this.height + this.gap));
    return column < 0 || column >= this.columns || row < 0 ? undefined : row * this.columns + column;
  }

  /** Puts names over their boards. */
  placeNames(names) {
    names.forEach((name, board) => {
      const { left, top, width } = this.rectangle(board);
      Object.assign(name.style, { left: `${left + width / 2}px`, top: `${top}px`, maxWidth: `${width}px` });
    });
  }

  /** Puts a frame around a board. */
  placeFrame(frame, board) {
    Object.entries(this.rectangle(board)).forEach(([side, length]) => { frame.style[side] = `${length}px`; });
  }
}
