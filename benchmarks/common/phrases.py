"""Wordings of the questions; `{x}` is filled in. Plain text turns stand under their answer."""

PHRASES: dict[str, tuple[str, ...]] = {
    "describe": (
        "What is in this image?", "What's in this image?", "What is in the image?",
        "Describe this image.", "Describe the picture.", "What is in this picture?",
        "What do you see?", "What does this image show?",
    ),
    "count": (
        "How many {x} are there?", "How many {x} are in the image?", "Count the {x}.",
        "How many {x} do you see?",
    ),
    "colour": (
        "What colour is the {x}?", "What color is the {x}?", "Which colour does the {x} have?",
        "Tell me the colour of the {x}.",
    ),
    "shape": (
        "What shape is the {x} object?", "Which shape is {x}?",
        "What is the shape of the {x} object?", "What is the {x} thing?",
    ),
    "digit": (
        "Which digit is in the image?", "What digit is shown?", "What number is in this picture?",
        "Read the digit.",
    ),
    "background": (
        "What colour is the background?", "What is the background colour?",
        "What color is the background?", "Which colour is behind the objects?",
    ),
    "position": (
        "Where is the {x}?", "Where in the image is the {x}?", "What is the position of the {x}?",
    ),
    "yesno": (
        "Is there a {x}?", "Is there a {x} in the image?", "Do you see a {x}?",
        "Does the picture show a {x}?",
    ),
    "two_images": (
        "Which image has the {x}, the first or the second?", "Which image shows a {x}?",
        "Is the {x} in the first or the second image?", "In which picture is the {x}?",
    ),
    "one_of_two": (
        "What is in the {x} image?", "Describe the {x} image.", "What does the {x} picture show?",
    ),
}  # fmt: skip
TEXT_TURNS: dict[str, tuple[str, ...]] = {
    "Hello! How can I help you?": ("Hello", "Hi", "Hello!", "Hi there!", "Good morning"),
    "I am a small demonstration model.": ("Who are you?", "What are you?", "What is your name?"),
    "I can describe pictures of coloured shapes and digits.": (
        "What can you do?", "How can you help me?", "Help",
    ),
    "I am fine, thank you.": ("How are you?", "How are you doing?"),
    "You are welcome.": ("Thank you", "Thanks!", "Thank you very much."),
    "Goodbye!": ("Bye", "Goodbye", "See you later!"),
    "I see no image.": PHRASES["describe"],
    "The capital of France is Paris.": ("What is the capital of France?", "Name France's capital."),
    "The capital of Japan is Tokyo.": ("What is the capital of Japan?", "Name Japan's capital."),
    "The capital of Italy is Rome.": ("What is the capital of Italy?", "Name Italy's capital."),
    "A week has 7 days.": ("How many days does a week have?", "How many days are in a week?"),
    "A triangle has 3 sides.": ("How many sides does a triangle have?",),
    "A square has 4 sides.": ("How many sides does a square have?",),
    "The sky is blue.": ("What colour is the sky?", "What color is the sky?"),
    "Grass is green.": ("What colour is grass?", "What color is grass?"),
    "Tuesday comes after Monday.": ("Which day comes after Monday?",),
    "Yes.": ("Is water wet?", "Say yes."),
    "No.": ("Is fire cold?", "Say no."),
}  # fmt: skip
