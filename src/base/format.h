// Numbers as short texts for tables, progress lines and reports; words of commands that the user may paste. Each
// function returns its text by value, so that it can be printed in place: printf("%s", farm_format_count(n).text).
#ifndef FARM_BASE_FORMAT_H
#define FARM_BASE_FORMAT_H

struct farm_number_text {
    char text[24];
};

// At most five characters: 950, 12.3k, 4.5M, 1.2G. Not finite: "-".
struct farm_number_text farm_format_count(double value);

// Three digits, or more before the point: 0.12, 27.9, 1234, 2e+12. Not finite: "-".
struct farm_number_text farm_format_digits(double value);

// Three digits, or more before the point, without zeros at the end: 0.00123, 5.89, 8, 27.9, 12345. Not finite: "-".
struct farm_number_text farm_format_figure(double value);

// In powers of 1024: "48 KiB", "1.5 GiB".
struct farm_number_text farm_format_bytes(double bytes);

// "0:12", "59:59", "1:02:03".
struct farm_number_text farm_format_duration(double seconds);

struct farm_word_text {
    char text[4 * 1024 + 8]; // any word of up to 1024 bytes
};

// A word of a command line as a POSIX shell reads it back: in quotes if it needs them. Longer words are cut.
struct farm_word_text farm_format_word(const char *word);

#endif
